"""The life of sessions against a real API server: placed, paused for gold, resumed, suspended, deleted."""

import pytest
from operatorrig import Rig, wait_until

pytestmark = pytest.mark.cluster


def test_a_session_is_placed_and_serves(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    status = rig.until_ready("chat")
    assert status["ready"] == "True"
    assert status["reason"] == "Serving"
    assert status["node"] == "node-a"
    assert status["gpu"] == "gpu-0 A100-80GB"
    assert status["endpoint"] == "http://chat.team.svc:8000/v1"
    assert rig.pods("chat") == ["chat-1"]
    assert rig.core.read_namespaced_service("chat", "team").spec.selector
