"""A real API server, pretended nodes, and the operator as a process of its own.

Each test has a namespace and nodes of its own; all share the API server.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cluster"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "chart"))

from kubernetes import config as kubernetes_config
from kubernetes.client import CoreV1Api
from kubernetes.client.api_client import ApiClient
from localcluster.fixtures import control_plane
from localcluster.loopback import Api as ControlPlane
from nodeactor import NodeActor
from operatorrig import NAMESPACE, Rig, clean, create_model

__all__ = ["control_plane"]

ROOT = Path(__file__).resolve().parents[3]

PRIORITY_CLASS = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: sojourn-session}
value: 0
preemptionPolicy: Never
"""


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[ApiClient]:
    """The API server with our kinds, and a namespace that checks the restricted level."""
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    control_plane.kubectl("create", "namespace", "sojourn-system")
    control_plane.kubectl("apply", "-f", "-", stdin=PRIORITY_CLASS)
    client = kubernetes_config.new_client_from_config(str(control_plane.kubeconfig))
    core = CoreV1Api(client)
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    core.create_namespace({"metadata": {"name": NAMESPACE, "labels": level}})
    core.create_namespaced_service_account(NAMESPACE, {"metadata": {"name": "default"}})
    yield client
    client.close()


@pytest.fixture
def rig(control_plane: ControlPlane, api: ApiClient, tmp_path: Path) -> Iterator[Rig]:
    """One model, no nodes, no operator, nothing in the namespace."""
    nodes = NodeActor(api)
    nodes.start()
    found = Rig(control_plane, api, nodes, tmp_path)
    found.settings = {
        "device": "cpu",
        "statusPollSeconds": 0.2,
        "lostNodeSeconds": 2,
        "priorityClassName": "sojourn-session",
    }
    create_model(found)
    yield found
    running = [operator for operator in found.operators if operator.process.poll() is None]
    try:
        for operator in running:
            operator.stop()
    finally:  # what one test leaves behind would fail all that follow
        for operator in running:
            operator.kill()
        clean(found)
    assert not nodes.errors
    log = tmp_path / "operator.log"
    assert not log.exists() or "Traceback" not in log.read_text(), log.read_text()[-6000:]
