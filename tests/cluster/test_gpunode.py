"""The device plugin's writes against a real API server, with exactly the rights that it names."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster.loopback import Api
from sojourn_api import names
from sojourn_api.access import Access
from sojourn_deviceplugin import facts, health, heartbeat, registry
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.kube import ApiError, Kube
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.node import Publisher
from sojourn_deviceplugin.offers import Offer, Snapshot

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
GIB = 1024**3
RIGHTS = [
    {"apiGroups": [names.GROUP], "resources": ["gpunodes"], "verbs": ["create", "patch"]},
    {"apiGroups": [names.GROUP], "resources": ["gpunodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "patch"]},
]
NODES = [f"node-{number}" for number in range(1, 7)]


@pytest.fixture(scope="module")
def access(control_plane: Api, tmp_path_factory: pytest.TempPathFactory) -> Access:
    """A service account with those rights and no others."""
    crds = str(ROOT / "crds" / "gpunodes.yaml")
    control_plane.kubectl("apply", "--server-side", "-f", crds)
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    who = {"kind": "ServiceAccount", "name": "plugin", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "plugin"}
    rbac = "rbac.authorization.k8s.io/v1"
    meta = {"name": "plugin"}
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta | {"namespace": "default"}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": meta, "rules": RIGHTS},
        {
            "apiVersion": rbac,
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": role,
            "subjects": [who],
        },
    ]
    objects += [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": one}} for one in NODES]
    manifest = yaml.safe_dump_all(objects)
    control_plane.kubectl("apply", "-f", "-", stdin=manifest)
    folder = tmp_path_factory.mktemp("account")
    (folder / "token").write_text(control_plane.kubectl("create", "token", "plugin"))
    settings = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    if "certificate-authority-data" in settings:
        authority = base64.b64decode(settings["certificate-authority-data"])
        (folder / "ca.crt").write_bytes(authority)
        ca_file = folder / "ca.crt"
    else:
        ca_file = Path(settings["certificate-authority"])
    return Access(url=settings["server"], token_file=folder / "token", ca_file=ca_file)


@pytest.fixture
def kube(access: Access) -> Iterator[Kube]:
    kube = Kube(access)
    yield kube
    kube.close()


def snapshot(*, healthy: bool = True) -> Snapshot:
    """Two GPUs with a grant on each."""
    found = tuple(
        facts.GpuFacts(uuid=f"GPU-{n}", model="NVIDIA H200", total_bytes=141 * GIB)
        for n in range(2)
    )
    known = registry.enroll({}, found, Config()).values()
    verdict = health.HEALTHY if healthy else health.Verdict(False, "Xid79", "reboot the node")  # noqa: FBT003
    offers = tuple(Offer(gpu, verdict, links=(1 - gpu.ordinal,)) for gpu in known)
    grants = tuple(
        Grant(ordinal=n, devices=frozenset(f"d-{n}-{k}" for k in range(30)), slot="1", made_ns=0)
        for n in range(2)
    )
    return facts.NodeFacts(gpus=found, driver="580.95.05", session=1), offers, grants


def columns(control_plane: Api, name: str) -> dict[str, str]:
    head, row = control_plane.kubectl("get", "gpunode", name).splitlines()
    return dict(zip(head.split(), row.split(), strict=True))


def test_the_node_is_created_and_shown(kube: Kube, control_plane: Api) -> None:
    Publisher(kube, "node-1", snapshot, Metrics()).round()
    shown = columns(control_plane, "node-1")
    assert (shown["GPUS"], shown["MODEL"], shown["READY"]) == ("2", "H200", "True")
    assert (shown["SLICES"], shown["FREE"], shown["SCATTER"]) == ("280", "220", "50")
    raw = json.loads(
        control_plane.kubectl("get", "gpunode", "node-1", "-o", "json", "--show-managed-fields")
    )
    assert raw["status"]["gpus"][1]["links"] == [0]
    managers = {entry["manager"] for entry in raw["metadata"]["managedFields"]}
    assert names.MANAGER_DEVICEPLUGIN in managers


def test_a_deleted_node_comes_back(kube: Kube, control_plane: Api) -> None:
    publisher = Publisher(kube, "node-2", snapshot, Metrics())
    publisher.round()
    control_plane.kubectl("delete", "gpunode", "node-2")
    publisher._written_at = float("-inf")  # a minute later
    publisher.round()
    assert columns(control_plane, "node-2")["GPUS"] == "2"


def test_events_and_health_arrive(kube: Kube, control_plane: Api) -> None:
    publisher = Publisher(kube, "node-3", lambda: snapshot(healthy=False), Metrics())
    publisher.tell(reason="Xid79", message="gpu-0: the GPU fell off the bus", warning=True)
    publisher.round()
    assert columns(control_plane, "node-3")["HEALTHY"] == "0"
    events = control_plane.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}")
    assert "Xid79" in events


def test_pods_of_the_node_are_read_by_their_metadata(kube: Kube, control_plane: Api) -> None:
    gpus = json.dumps([{"ordinal": 0, "uuid": "GPU-0", "slices": 30, "share": 500}])
    owner = {"apiVersion": names.API_VERSION, "kind": "LLMSession", "name": "s", "uid": "u"}
    for node in ("node-4", "node-5"):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"s-{node}",
                "namespace": "default",
                "ownerReferences": [owner | {"controller": True}],
                "annotations": {
                    names.ANNOTATION_TIER: "gold",
                    names.ANNOTATION_PRIORITY: "2500",
                    names.ANNOTATION_GPUS: gpus,
                },
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "runtime", "image": "none"}],
                "serviceAccountName": "plugin",  # no controller makes a default one here
                "automountServiceAccountToken": False,
            },
        }
        control_plane.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(pod))
    publisher = Publisher(kube, "node-4", snapshot, Metrics())
    publisher.round()
    assert set(publisher.pods) == {("default", "s-node-4")}
    assert publisher.pods["default", "s-node-4"].priority == 2500


def test_a_sign_of_life_is_renewed_and_belongs_to_the_node(kube: Kube, control_plane: Api) -> None:
    now = 0.0
    publisher = Publisher(
        kube, "node-6", snapshot, Metrics(), namespace="default", clock=lambda: now
    )

    def lease() -> dict[str, Any]:
        name = names.heartbeat_name("node-6")
        found: dict[str, Any] = json.loads(
            control_plane.kubectl("get", "lease", name, "-n", "default", "-o", "json")
        )
        return found

    publisher.round()
    first = lease()
    publisher.round()
    assert lease() == first, "not before it is time"
    now = heartbeat.RENEW_SECONDS
    publisher.round()
    assert lease()["spec"]["renewTime"] > first["spec"]["renewTime"]
    uid = control_plane.kubectl("get", "node", "node-6", "-o", "jsonpath={.metadata.uid}")
    assert [one["uid"] for one in first["metadata"]["ownerReferences"]] == [uid]
    kept = control_plane.kubectl(
        "get", "gpunode", "node-6", "-o", "jsonpath={.metadata.ownerReferences[*].uid}"
    )
    assert kept == uid


def test_nothing_else_is_allowed(kube: Kube) -> None:
    with pytest.raises(ApiError) as refused:
        kube.call("GET", "/api/v1/secrets")
    assert refused.value.status == 403
