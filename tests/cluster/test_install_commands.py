"""What the chart's Jobs run, on a real API server: CRDs are upgraded, sessions are let go of."""

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config as kubernetes_config
from localcluster.loopback import Api as Server
from sojourn_api import names
from sojourn_operator.act.api import Api, NotFoundError
from sojourn_operator.commands import crds, release
from sojourn_operator.config import Lease
from sojourn_operator.kinds import LEASES, PODS, SESSIONS

pytestmark = pytest.mark.cluster

FOLDER = Path(__file__).parents[2] / "crds"
NAMESPACE = "uninstall"
LEASE = Lease(name="sojourn-operator", namespace=NAMESPACE)
SESSION: dict[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": "LLMSession",
    "metadata": {
        "name": "chat",
        "namespace": NAMESPACE,
        "finalizers": [names.FINALIZER_SESSION, "example.com/other"],
    },
    "spec": {"model": "smollm2", "tier": "silver"},
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "chat-1",
        "namespace": NAMESPACE,
        "labels": {names.LABEL_SESSION: "chat"},
        "finalizers": [names.FINALIZER_POD],
    },
    "spec": {"containers": [{"name": "runtime", "image": "none"}]},
}


@pytest.fixture(scope="module")
def api(control_plane: Server) -> Iterator[Api]:
    client = kubernetes_config.new_client_from_config(str(control_plane.kubeconfig))
    yield Api(client)
    client.close()


@pytest.fixture
def namespace(control_plane: Server, api: Api) -> Iterator[str]:
    """A namespace with our kinds in the cluster; its sessions are gone afterwards."""
    crds.apply_folder(api, FOLDER)
    manifest = json.dumps(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    control_plane.kubectl("apply", "-f", "-", stdin=manifest)
    # Without a controller manager nobody makes it, and pods are refused without it.
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": NAMESPACE},
    }
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(account))
    yield NAMESPACE
    for kind in ("llmsessions", "pods"):
        listed = control_plane.kubectl("-n", NAMESPACE, "get", kind, "-o", "name").split()
        for name in listed:
            bare = '{"metadata":{"finalizers":null}}'
            control_plane.kubectl("-n", NAMESPACE, "patch", name, "--type=merge", "-p", bare)
            control_plane.kubectl(
                "-n", NAMESPACE, "delete", name, "--ignore-not-found", "--grace-period=0", "--force"
            )
    control_plane.kubectl("-n", NAMESPACE, "delete", "leases", "--all")


def test_crds_are_applied_and_established(api: Api) -> None:
    crds.apply_folder(api, FOLDER)
    for path in FOLDER.glob("*.yaml"):
        raw = api.get(crds.CRDS, name=f"{path.stem}.{names.GROUP}")
        found = {one["type"]: one["status"] for one in raw["status"]["conditions"]}
        assert found["Established"] == "True"


def test_an_upgrade_replaces_what_helm_installed(
    control_plane: Server, api: Api, tmp_path: Path
) -> None:
    """A field that the new version does not have is gone, though another manager wrote it."""
    new = yaml.safe_load((FOLDER / "gpunodes.yaml").read_text())
    old = copy.deepcopy(new)
    schema = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["status"]["properties"]["legacy"] = {"type": "boolean"}
    control_plane.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-"),
        stdin=json.dumps(old),
    )
    (tmp_path / "gpunodes.yaml").write_text(yaml.safe_dump(new))
    crds.apply_folder(api, tmp_path)
    found = api.get(crds.CRDS, name=f"gpunodes.{names.GROUP}")
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "legacy" not in schema["properties"]["status"]["properties"]


def test_a_folder_without_crds_is_an_error_that_says_what_to_mount(
    api: Api, tmp_path: Path
) -> None:
    with pytest.raises(crds.CrdsError, match="mount the chart's crds/ there"):
        crds.apply_folder(api, tmp_path)


def test_what_is_no_crd_is_not_applied(api: Api, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: ClusterRoleBinding\nmetadata: {name: x}\n")
    with pytest.raises(crds.CrdsError, match="holds no CustomResourceDefinition"):
        crds.apply_folder(api, tmp_path)


def test_a_refused_crd_is_named(api: Api, tmp_path: Path) -> None:
    raw = yaml.safe_load((FOLDER / "gpunodes.yaml").read_text())
    raw["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["type"] = "array"
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(crds.CrdsError, match=r"gpunodes\.sojourn\.dev was refused"):
        crds.apply_folder(api, tmp_path)


def test_release_suspends_waits_for_the_pods_and_lets_go(api: Api, namespace: str) -> None:
    api.create(SESSIONS, copy.deepcopy(SESSION))
    api.create(PODS, copy.deepcopy(POD))
    api.create(LEASES, lease("operator-1"))
    operator = threading.Thread(target=end_pod_once_suspended, args=(api,))
    operator.start()
    release.release(api, lease=LEASE, timeout=60, fence_seconds=0)
    operator.join()
    session = api.get(SESSIONS, name="chat", namespace=namespace)
    assert session["spec"]["suspend"] is True
    assert session["metadata"]["finalizers"] == ["example.com/other"]
    held = api.get(LEASES, name=LEASE.name, namespace=namespace)["spec"]
    assert held["holderIdentity"] == release.HOLDER
    assert held["leaseTransitions"] == 8


def test_release_of_nothing_is_quick_and_needs_no_lease(api: Api, namespace: str) -> None:
    assert namespace
    release.release(api, lease=LEASE, timeout=5, fence_seconds=0)
    with pytest.raises(NotFoundError):
        api.get(LEASES, name=LEASE.name, namespace=namespace)


def test_release_without_an_operator_fails_and_names_the_pods(api: Api, namespace: str) -> None:
    api.create(SESSIONS, copy.deepcopy(SESSION))
    api.create(PODS, copy.deepcopy(POD))
    with pytest.raises(release.ReleaseError, match=rf"{namespace}/chat-1"):
        release.release(api, lease=LEASE, timeout=0.1, fence_seconds=0)
    held = api.get(SESSIONS, name="chat", namespace=namespace)["metadata"]["finalizers"]
    assert names.FINALIZER_SESSION in held, "a session whose pod may still run is held"


def test_the_commands_are_those_of_the_chart(
    control_plane: Server, namespace: str, tmp_path: Path
) -> None:
    settings = tmp_path / "operator.yaml"
    settings.write_text(f"lease: {{name: {LEASE.name}, namespace: {namespace}}}\n")
    assert command(control_plane, "apply-crds", "--from", str(FOLDER)) == (0, "")
    status, said = command(control_plane, "apply-crds", "--from", str(tmp_path / "none"))
    assert status == 1
    assert "has no *.yaml files" in said
    assert command(control_plane, "release", f"--config={settings}", "--timeout=5")[0] == 0


def command(control_plane: Server, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "sojourn_operator", "--log-level=error", *arguments],
        env={"KUBECONFIG": str(control_plane.kubeconfig), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


def end_pod_once_suspended(api: Api) -> None:
    """What the operator and the kubelet do when a session is suspended."""
    while not api.get(SESSIONS, name="chat", namespace=NAMESPACE)["spec"].get("suspend"):
        threading.Event().wait(0.05)
    pod = api.get(PODS, name="chat-1", namespace=NAMESPACE)
    api.patch(PODS, {"metadata": {"finalizers": None}}, name="chat-1", namespace=NAMESPACE)
    api.delete(PODS, name="chat-1", namespace=NAMESPACE, uid=pod["metadata"]["uid"])


def lease(holder: str) -> dict[str, Any]:
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.name,
        "metadata": {"name": LEASE.name, "namespace": LEASE.namespace},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 7},
    }
