"""A node whose device plugin falls silent: told once, nothing new there, and back with its return.

The device plugin is played: its Lease and its GPUNode.
"""

from typing import Any

import pytest
from operatorrig import Rig, wait_until
from sojourn_api import names
from sojourn_operator.act.api import Api
from sojourn_operator.kinds import LEASES

pytestmark = pytest.mark.cluster

SPACE = "sojourn-system"
NODE = (names.GROUP, names.VERSION, "gpunodes", "node-a")


def beat(rig: Rig, time: str, *, seconds: int) -> None:
    """The plugin's sign of life, for so long."""
    body = {
        "metadata": {
            "name": names.heartbeat_name("node-a"),
            "namespace": SPACE,
            "labels": {names.LABEL_HEARTBEAT: names.MANAGER_DEVICEPLUGIN},
        },
        "spec": {
            "holderIdentity": "node-a",
            "leaseDurationSeconds": seconds,
            "renewTime": f"{time}.000000Z",
        },
    }
    Api(rig.client).apply(LEASES, body)


def say_healthy(rig: Rig) -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Healthy",
        "message": "GPUs in service: 1",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {"status": {"conditions": [condition]}}
    rig.custom.patch_cluster_custom_object_status(*NODE, body)


def ready(rig: Rig) -> dict[str, Any]:
    status = rig.custom.get_cluster_custom_object(*NODE).get("status", {})
    found = {one["type"]: one for one in status.get("conditions", [])}
    return dict(found.get("Ready", {}))


def until_told(rig: Rig, reason: str) -> None:
    wait_until(
        lambda: ready(rig).get("reason") == reason,
        what="it is told",
        instead=lambda: ready(rig),
    )


def test_a_silent_plugin_is_told_once_and_avoided_until_it_is_back(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    say_healthy(rig)
    beat(rig, "2026-01-01T00:00:00", seconds=1)
    rig.operate()
    until_told(rig, "PluginGone")
    assert ready(rig)["status"] == "Unknown"
    assert "last heard of at 2026-01-01T00:00:00Z" in ready(rig)["message"]
    gpus = rig.custom.get_cluster_custom_object(*NODE)["status"]["gpus"]
    assert gpus, "what was known of the GPUs stays"
    rig.create("chat")
    waits = rig.until("chat", "Ready", "False", "WaitingForRoom")
    assert "its device plugin is gone" in waits["message"]
    beat(rig, "2026-01-01T00:10:00", seconds=3600)
    say_healthy(rig)
    rig.until_ready("chat")
    assert ready(rig)["reason"] == "Healthy"

    def events() -> list[tuple[str, int]]:
        told = rig.core.list_namespaced_event(
            "default", field_selector="involvedObject.kind=GPUNode"
        )
        return [(event.reason, event.count) for event in told.items]

    assert events() == [("PluginGone", 1)]


def test_a_silent_plugin_on_a_dead_node_is_told_as_the_nodes_death(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    say_healthy(rig)
    beat(rig, "2026-01-01T00:00:00", seconds=1)
    rig.nodes.set_ready("node-a", ready=False)
    rig.operate()
    until_told(rig, "NodeNotReady")
    assert ready(rig)["status"] == "Unknown"
    assert "node node-a is not ready since " in ready(rig)["message"]
    assert "kubectl describe node node-a" in ready(rig)["message"]
