"""The device plugin from the checkout on a node of the cluster, under its real kubelet.

Outside any pod, so that nothing but the kubelet is between; the chart's plugin must not run there.
"""

import datetime as dt
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml
from fakenvml import machine as fake
from localcluster import fakegpus, node
from localcluster.lifecycle import Cluster
from localcluster.paths import CHECKOUT, Node
from sojourn_api import names
from sojourn_deviceplugin.journal import Journal

MIB_OF_288 = 289 * 1024
"""MiB of memory that make 288 slices of 1 GiB."""


def until(condition: Callable[[], object], *, seconds: float, pause: float = 0.1) -> float:
    """Wait for a condition; returns how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        time.sleep(pause)
    return time.monotonic() - start


def installed(cluster: Cluster) -> bool:
    """Whether the chart's plugin runs: the two would get in each other's way."""
    return "sojourn-deviceplugin" in cluster.kubectl("get", "daemonsets", "-A", "-o", "name")


@dataclass
class NodePlugin:
    """The plugin's process, its fake machine, and its node."""

    cluster: Cluster
    node: Node
    machine: fake.Machine = field(init=False)
    settings: dict[str, object] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / fake.LIBRARY).write_bytes(fakegpus.build().read_bytes())
        self.log.unlink(missing_ok=True)
        self.machine = fake.Machine(self.folder / "scenario.json")
        self.settings = {
            "stateDir": str(self.folder / "state"),
            "deviceNodes": "none",
            "publish": False,
            "metricsPort": 0,
        } | self.settings

    @property
    def folder(self) -> Path:
        return self.node.folder / "deviceplugin-test"

    @property
    def log(self) -> Path:
        return self.folder / "plugin.log"

    @property
    def sockets(self) -> Path:
        """The kubelet's folder of plugins, as the host sees it."""
        return self.node.folder / "kubelet" / "device-plugins"

    def grants(self, uuid: str) -> set[str]:
        """The arbiter's slots of one GPU."""
        folder = self.node.folder / "arbiter" / uuid / "grants"
        return {entry.name for entry in folder.iterdir() if entry.name.isdecimal()}

    def held(self, uuid: str) -> dict[str, frozenset[str]]:
        """The devices of each slot, by the plugin's journal."""
        return dict(Journal(self.node.folder / "arbiter" / uuid / "journal").held)

    def start(self) -> None:
        self.machine.write()
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.settings))
        path = ":".join(str(CHECKOUT / part) for part in ("crds", "deviceplugin"))
        command = [
            "env",
            f"PYTHONPATH={path}",
            f"LD_LIBRARY_PATH={self.folder}",
            f"FAKE_NVML_SCENARIO={self.machine.path}",
            *(sys.executable, "-m", "sojourn_deviceplugin", "run"),
            *("--config", str(self.folder / "config.yaml")),
        ]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(node.command_on(self.node.name, command), stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()  # nsenter waits for it
            self._process.wait()
            self._process = None

    def registered(self) -> Iterator[tuple[str, float]]:
        """Each registration so far: the resource, and when (seconds since the epoch)."""
        for line in self.log.read_text().splitlines():
            entry = json.loads(line)
            if entry["message"] == "registered":
                yield entry["resource"], dt.datetime.fromisoformat(entry["time"]).timestamp()

    def counted(self, part: str = "allocatable") -> dict[str, int]:
        """Our resources in the node's status."""
        raw = json.loads(self.cluster.kubectl("get", "node", self.node.name, "-o", "json"))
        found = raw["status"][part].items()
        ours = (names.RESOURCE_PREFIX, names.MIG_PREFIX)
        return {key: int(value) for key, value in found if key.startswith(ours)}

    def slices(self, part: str = "allocatable") -> dict[str, int]:
        """Those of them that are GPUs in slices."""
        found = self.counted(part).items()
        return {name: count for name, count in found if name.startswith(names.RESOURCE_PREFIX)}

    def kubelet(self) -> str:
        """The pid of the kubelet, empty while none runs."""
        try:
            return self.cluster.on_node(self.node.name, "pidof", "kubelet").strip()
        except subprocess.CalledProcessError:
            return ""

    def restart_kubelet(self, *, lose_checkpoint: bool = False) -> float:
        """Kill it; its supervisor starts it again. Returns when its socket was back (epoch)."""
        socket, before = self.sockets / "kubelet.sock", self.kubelet()
        old = socket.stat().st_ctime_ns
        self.cluster.on_node(self.node.name, "kill", "-9", before)
        if lose_checkpoint:
            (self.sockets / "kubelet_internal_checkpoint").unlink()

        def back() -> bool:
            return socket.exists() and socket.stat().st_ctime_ns != old

        until(back, seconds=60, pause=0.02)
        return socket.stat().st_ctime_ns / 1e9
