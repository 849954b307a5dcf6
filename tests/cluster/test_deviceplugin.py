"""The device plugin from the checkout under a real kubelet: sixteen GPUs, pods, restarts.

On the second node; `nodeplugin` starts the plugin there.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fakenvml import machine as fake
from localcluster.lifecycle import Cluster
from localcluster.paths import NODES
from nodeplugin import MIB_OF_288, NodePlugin, installed, until
from sojourn_api import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NODE = NODES[1]
GPUS, SLICES = 16, 288
STATUS_SECONDS = 1.0
"""`nodeStatusUpdateFrequency` of this cluster's kubelets."""
NAMESPACE = "deviceplugin-test"
LOOK = """
import fcntl, json, os, pathlib, struct, time
found = {key: value for key, value in os.environ.items() if key.startswith("SOJOURN_GPU_")}
folder = pathlib.Path("/run/sojourn/gpu-" + min(found).split("_")[2])
file = (folder / "own" / "page").open("r+b")
lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)  # as a runtime does
file.write(file.read(8))
file.flush()
refused = []
for path in (folder / "all" / "index", folder / "own" / "other"):
    try:
        path.open("wb")
    except OSError as error:
        refused.append(str(path))
print(json.dumps({"env": found, "refused": refused}), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def plugin(cluster: Cluster) -> Iterator[NodePlugin]:
    if installed(cluster):
        pytest.skip("the chart's device plugin runs in this cluster")
    plugin = NodePlugin(cluster, NODE)
    plugin.machine.gpus = [fake.gpu(n, name="NVIDIA B300", mib=MIB_OF_288) for n in range(GPUS)]
    plugin.start()
    cluster.kubectl("create", "namespace", NAMESPACE)
    accounts = ("get", "serviceaccounts", f"-n={NAMESPACE}")
    until(lambda: "default" in cluster.kubectl(*accounts), seconds=30)
    yield plugin
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
    plugin.kill()


def full() -> dict[str, int]:
    return {names.gpu_resource(n): SLICES for n in range(GPUS)}


def pod(name: str, wants: dict[str, int]) -> str:
    amounts = {key: str(value) for key, value in wants.items()}
    container = {
        "name": "c",
        "image": "sojourn/base:dev",
        "args": ["-c", LOOK],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "readOnlyRootFilesystem": True,
        },
    }
    spec = {
        "nodeName": NODE.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    meta = {"name": name, "namespace": NAMESPACE}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def phase(cluster: Cluster, name: str) -> str:
    query = ("get", "pod", name, f"-n={NAMESPACE}", "-o=jsonpath={.status.phase}")
    return cluster.kubectl(*query)


def said(cluster: Cluster, name: str) -> dict[str, Any]:
    text = ""

    def spoken() -> bool:
        nonlocal text
        text = cluster.kubectl("logs", name, f"-n={NAMESPACE}") if running() else ""
        return bool(text)

    def running() -> bool:
        return phase(cluster, name) == "Running"

    until(spoken, seconds=60)
    found: dict[str, Any] = json.loads(text)
    return found


def test_sixteen_gpus_of_288_slices_stand_in_the_nodes_status(plugin: NodePlugin) -> None:
    """Soon after the plugin is there: what it registers is counted at the next status."""
    plugin.kill()
    until(lambda: not any(plugin.slices().values()), seconds=30)
    begin = time.time()  # the clock of the plugin's log
    plugin.start()

    def registered() -> list[float]:
        return [at for _, at in plugin.registered() if at > begin]

    until(lambda: len(registered()) == GPUS, seconds=30)
    until(lambda: plugin.slices() == full(), seconds=20, pause=0.02)
    took = time.time() - max(registered())
    assert took <= STATUS_SECONDS + 2
    assert plugin.slices("capacity") == full()


def test_a_restricted_pod_gets_its_gpus_and_can_write_its_own_page_only(
    cluster: Cluster, plugin: NodePlugin
) -> None:
    until(lambda: plugin.slices() == full(), seconds=20)
    wants = {names.gpu_resource(3): 200, names.gpu_resource(5): 12}
    cluster.kubectl("create", "-f", "-", stdin=pod("two-gpus", wants))
    found = said(cluster, "two-gpus")
    assert found["env"][names.env_gpu_slices(3)] == "200"
    assert found["env"][names.env_gpu_bytes(5)] == str(12 * 1024**3)
    assert found["env"][names.env_gpu_uuid(5)] == fake.uuid(5)
    assert len(found["refused"]) == 2
    cluster.kubectl("create", "-f", "-", stdin=pod("too-much", {names.gpu_resource(3): 100}))
    until(lambda: phase(cluster, "too-much") == "Failed", seconds=30)


def test_plugin_and_kubelet_restart_while_pods_run_on(cluster: Cluster, plugin: NodePlugin) -> None:
    until(lambda: plugin.slices() == full(), seconds=20)
    wants = {names.gpu_resource(7): 280}
    cluster.kubectl("create", "-f", "-", stdin=pod("runs-on", wants))
    slot = said(cluster, "runs-on")["env"][names.env_gpu_slot(7)]
    plugin.kill()
    until(lambda: not any(plugin.slices().values()), seconds=30)
    plugin.start()
    until(lambda: plugin.slices() == full(), seconds=30)
    for _ in range(3):
        plugin.restart_kubelet()
        until(lambda: plugin.kubelet() and plugin.slices() == full(), seconds=60)
        assert phase(cluster, "runs-on") == "Running"
    cluster.kubectl("create", "-f", "-", stdin=pod("second", {names.gpu_resource(7): 8}))
    said(cluster, "second")
    cluster.kubectl("create", "-f", "-", stdin=pod("third", {names.gpu_resource(7): 8}))
    until(lambda: phase(cluster, "third") == "Failed", seconds=30)
    assert phase(cluster, "runs-on") == "Running"
    assert slot in plugin.grants(fake.uuid(7))


def test_a_lost_checkpoint_gives_no_slice_twice(cluster: Cluster, plugin: NodePlugin) -> None:
    """The kubelet then knows of no device that a running pod has, and would give it again."""
    until(lambda: plugin.slices() == full(), seconds=20)
    resource = names.gpu_resource(9)
    cluster.kubectl("create", "-f", "-", stdin=pod("keeps-on", {resource: 200}))
    slot = said(cluster, "keeps-on")["env"][names.env_gpu_slot(9)]
    devices = plugin.held(fake.uuid(9))[slot]
    plugin.restart_kubelet(lose_checkpoint=True)
    until(lambda: plugin.kubelet() and plugin.slices() == full(), seconds=60)
    cluster.kubectl("create", "-f", "-", stdin=pod("too-large", {resource: 100}))
    until(lambda: phase(cluster, "too-large") == "Failed", seconds=30)
    cluster.kubectl("create", "-f", "-", stdin=pod("fits", {resource: 80}))
    other = said(cluster, "fits")["env"][names.env_gpu_slot(9)]
    assert phase(cluster, "keeps-on") == "Running"
    held = plugin.held(fake.uuid(9))
    assert held[slot] == devices
    assert not held[other] & devices
    assert slot in plugin.grants(fake.uuid(9))
    cluster.kubectl("delete", "pod", "keeps-on", f"-n={NAMESPACE}", "--wait=true")
    until(lambda: slot not in plugin.grants(fake.uuid(9)), seconds=30)
