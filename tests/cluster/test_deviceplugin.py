"""The device plugin from the checkout under a real kubelet: sixteen GPUs, pods, restarts.

On the second node, outside any pod, so that nothing but the kubelet is between; the chart's plugin
must not run there.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from fakenvml import machine as fake
from localcluster import fakegpus, node
from localcluster.lifecycle import Cluster
from localcluster.paths import CHECKOUT, NODES
from sojourn_api import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NODE = NODES[1]
GPUS, SLICES = 16, 288
NAMESPACE = "deviceplugin-test"
LOOK = """
import json, os, pathlib, time
found = {key: value for key, value in os.environ.items() if key.startswith("SOJOURN_GPU_")}
folder = pathlib.Path("/run/sojourn/gpu-" + min(found).split("_")[2])
with (folder / "own" / "page").open("r+b") as file:
    file.write(file.read(8))
refused = []
for path in (folder / "all" / "index", folder / "own" / "other"):
    try:
        path.open("wb")
    except OSError as error:
        refused.append(str(path))
print(json.dumps({"env": found, "refused": refused}), flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], object], *, seconds: float) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - start


@dataclass
class Plugin:
    """The plugin's process on the node."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = ":".join(str(CHECKOUT / part) for part in ("crds", "deviceplugin"))
        command = [
            "env",
            f"PYTHONPATH={path}",
            f"LD_LIBRARY_PATH={self.folder}",
            f"FAKE_NVML_SCENARIO={self.folder / 'scenario.json'}",
            *(sys.executable, "-m", "sojourn_deviceplugin", "run"),
            *("--config", str(self.folder / "config.yaml")),
        ]
        with (self.folder / "plugin.log").open("a") as log:
            self.process = subprocess.Popen(node.command_on(NODE.name, command), stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()  # nsenter waits for it
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def plugin(cluster: Cluster) -> Iterator[Plugin]:
    installed = cluster.kubectl("get", "daemonsets", "-A", "-o", "name")
    if "sojourn-deviceplugin" in installed:
        pytest.skip(
            "the chart's device plugin runs in this cluster: they would get in each other's way"
        )
    folder = NODE.folder / "deviceplugin-test"
    folder.mkdir(exist_ok=True)
    (folder / fake.LIBRARY).write_bytes(fakegpus.build().read_bytes())
    gpus = [fake.gpu(n, name="NVIDIA B300", mib=289 * 1024) for n in range(GPUS)]
    fake.Machine(folder / "scenario.json", gpus=gpus).write()
    settings = {
        "stateDir": str(folder / "state"),
        "deviceNodes": "none",
        "publish": False,
        "metricsPort": 0,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    plugin = Plugin(folder)
    plugin.start()
    cluster.kubectl("create", "namespace", NAMESPACE)
    accounts = ("get", "serviceaccounts", f"-n={NAMESPACE}")
    until(lambda: "default" in cluster.kubectl(*accounts), seconds=30)
    yield plugin
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
    plugin.kill()


def capacity(cluster: Cluster, part: str = "allocatable") -> dict[str, int]:
    raw = json.loads(cluster.kubectl("get", "node", NODE.name, "-o", "json"))
    found = raw["status"][part].items()
    return {key: int(value) for key, value in found if key.startswith(names.RESOURCE_PREFIX)}


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


@pytest.mark.usefixtures("plugin")
def test_sixteen_gpus_of_288_slices_stand_in_the_nodes_status(cluster: Cluster) -> None:
    until(lambda: capacity(cluster) == full(), seconds=20)
    assert capacity(cluster, "capacity") == full()


@pytest.mark.usefixtures("plugin")
def test_a_restricted_pod_gets_its_gpus_and_can_write_its_own_page_only(cluster: Cluster) -> None:
    until(lambda: capacity(cluster) == full(), seconds=20)
    wants = {names.gpu_resource(3): 200, names.gpu_resource(5): 12}
    cluster.kubectl("create", "-f", "-", stdin=pod("two-gpus", wants))
    found = said(cluster, "two-gpus")
    assert found["env"][names.env_gpu_slices(3)] == "200"
    assert found["env"][names.env_gpu_bytes(5)] == str(12 * 1024**3)
    assert found["env"][names.env_gpu_uuid(5)] == fake.uuid(5)
    assert len(found["refused"]) == 2
    cluster.kubectl("create", "-f", "-", stdin=pod("too-much", {names.gpu_resource(3): 100}))
    until(lambda: phase(cluster, "too-much") == "Failed", seconds=30)


def test_plugin_and_kubelet_restart_while_pods_run_on(cluster: Cluster, plugin: Plugin) -> None:
    until(lambda: capacity(cluster) == full(), seconds=20)
    wants = {names.gpu_resource(7): 280}
    cluster.kubectl("create", "-f", "-", stdin=pod("runs-on", wants))
    said(cluster, "runs-on")
    plugin.kill()
    until(lambda: not any(capacity(cluster).values()), seconds=30)
    plugin.start()
    until(lambda: capacity(cluster) == full(), seconds=30)
    before = cluster.on_node(NODE.name, "pidof", "kubelet").strip()
    cluster.on_node(NODE.name, "kill", before)
    until(lambda: kubelet(cluster) not in {"", before}, seconds=30)
    until(lambda: capacity(cluster) == full(), seconds=60)
    assert phase(cluster, "runs-on") == "Running"
    cluster.kubectl("create", "-f", "-", stdin=pod("second", {names.gpu_resource(7): 8}))
    said(cluster, "second")
    cluster.kubectl("create", "-f", "-", stdin=pod("third", {names.gpu_resource(7): 8}))
    until(lambda: phase(cluster, "third") == "Failed", seconds=30)
    assert phase(cluster, "runs-on") == "Running"


def kubelet(cluster: Cluster) -> str:
    try:
        return cluster.on_node(NODE.name, "pidof", "kubelet").strip()
    except subprocess.CalledProcessError:
        return ""
