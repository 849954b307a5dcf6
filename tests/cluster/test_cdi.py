"""A pod gets what the node's CDI specification adds for its GPU: real kubelet, containerd 1.7.

In a cluster of its own, since Debian's containerd is of before CDI; `cluster.py build` builds that
one from its Go module.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml
from fakenvml import machine as fake
from localcluster import binaries, fakegpus
from localcluster.nodeconfig import CDI_FOLDER
from localcluster.paths import CHECKOUT, CLUSTER_FOLDER
from sojourn_api import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME, NODE = "sojourn-cdi", "node-b"
FOLDER = Path("/var/lib") / NAME / "nodes" / NODE
GPU0, GPU1 = names.gpu_resource(0), names.gpu_resource(1)
LOOK = """
import json, os, pathlib
keys = ("CDI_GAVE", "SOJOURN_GPU_0_UUID", "SOJOURN_GPU_1_UUID")
given = pathlib.Path("/run/given")
print(json.dumps({
    "env": {key: os.environ.get(key) for key in keys},
    "given": given.read_text() if given.exists() else None,
}))
"""


def until(condition: Callable[[], object], *, seconds: float) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        time.sleep(0.2)


def cluster(*arguments: str, stdin: str = "") -> str:
    command = [sys.executable, str(CLUSTER_FOLDER / "cluster.py"), *arguments]
    environment = os.environ | {"SOJOURN_CLUSTER": NAME, "SOJOURN_CONTAINERD": "module"}
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass
class Plugin:
    """The plugin's process on the node, with `deviceListStrategy: cdi`."""

    folder: Path = FOLDER / "deviceplugin-test"
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / fake.LIBRARY).write_bytes(fakegpus.build().read_bytes())
        machine = fake.Machine(self.folder / "scenario.json", gpus=[fake.gpu(0), fake.gpu(1)])
        machine.write()
        settings = {
            "stateDir": str(self.folder / "state"),
            "deviceListStrategy": "cdi",
            "publish": False,
            "metricsPort": 0,
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(settings))
        path = ":".join(str(CHECKOUT / part) for part in ("crds", "deviceplugin"))
        command = [
            *(sys.executable, str(CLUSTER_FOLDER / "cluster.py"), "exec-node", NODE, "env"),
            f"PYTHONPATH={path}",
            f"LD_LIBRARY_PATH={self.folder}",
            f"FAKE_NVML_SCENARIO={machine.path}",
            *(sys.executable, "-m", "sojourn_deviceplugin", "run"),
            *("--config", str(self.folder / "config.yaml")),
        ]
        environment = os.environ | {"SOJOURN_CLUSTER": NAME, "SOJOURN_CONTAINERD": "module"}
        with (self.folder / "plugin.log").open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)

    def stop(self) -> None:
        if self.process is not None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def node() -> Iterator[None]:
    unbuilt = binaries.missing(binaries.CONTAINERD)
    assert not unbuilt, f"not built yet: {unbuilt}; run `cluster.py build` once"
    cluster("up")
    plugin = Plugin()
    try:
        specify()
        plugin.start()
        until(lambda: allocatable().get(GPU0) == allocatable().get(GPU1) == 79, seconds=60)
        accounts = ("kubectl", "get", "serviceaccounts", "-o", "name")
        until(lambda: "default" in cluster(*accounts), seconds=30)
        yield
        cluster("kubectl", "delete", "pods", "--all", "--wait=true")
    finally:
        plugin.stop()
        cluster("down")


def specify() -> None:
    """What a vendor's toolkit would write: here an environment variable and a file for each GPU."""
    folder = FOLDER / "opt" / Path(CDI_FOLDER).name
    folder.mkdir(parents=True, exist_ok=True)
    devices = []
    for number in range(2):
        uuid = fake.uuid(number)
        (folder / uuid).write_text(f"file of {uuid}")
        mount = {
            "hostPath": f"{CDI_FOLDER}/{uuid}",
            "containerPath": "/run/given",
            "options": ["ro", "bind"],
        }
        edits = {"env": [f"CDI_GAVE={uuid}"], "mounts": [mount]}
        devices.append({"name": uuid, "containerEdits": edits})
    specification = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "nvidia.json").write_text(json.dumps(specification))


def allocatable() -> dict[str, int]:
    raw = json.loads(cluster("kubectl", "get", "node", NODE, "-o", "json"))
    found = raw["status"]["allocatable"].items()
    return {key: int(value) for key, value in found if key.startswith(names.RESOURCE_PREFIX)}


def said(name: str, wants: dict[str, int]) -> dict[str, object]:
    """What a pod that asks for this sees."""
    amounts = {key: str(value) for key, value in wants.items()}
    container = {
        "name": "c",
        "image": "sojourn/base:dev",
        "args": ["-c", LOOK],
        "resources": {"limits": amounts, "requests": amounts},
    }
    spec = {"nodeName": NODE, "restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster("kubectl", "create", "-f", "-", stdin=json.dumps(pod))
    phase = ("kubectl", "get", "pod", name, "-o=jsonpath={.status.phase}")
    until(lambda: cluster(*phase) in {"Succeeded", "Failed"}, seconds=60)
    found: dict[str, object] = json.loads(cluster("kubectl", "logs", name))
    return found


@pytest.mark.usefixtures("node")
def test_the_runtime_adds_what_the_specification_says_for_the_granted_gpu() -> None:
    version = cluster("kubectl", "get", "node", NODE, "-o=jsonpath={.status.nodeInfo}")
    assert "containerd://1.7" in version
    uuid = fake.uuid(1)
    found = said("one", {GPU1: 12})
    assert found["env"] == {
        "CDI_GAVE": uuid,
        "SOJOURN_GPU_0_UUID": None,
        "SOJOURN_GPU_1_UUID": uuid,
    }
    assert found["given"] == f"file of {uuid}"


@pytest.mark.usefixtures("node")
def test_a_pod_that_asks_for_nothing_gets_nothing() -> None:
    found = said("none", {})
    assert found["given"] is None
    assert set(found["env"].values()) == {None}  # type: ignore[attr-defined]
