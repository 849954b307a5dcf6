"""One node for tests of the device plugin: fake NVML below, fake kubelet above, real sockets."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fakekubelet import Kubelet
from fakenvml import machine as fake
from sojourn_api import names
from sojourn_api.access import Access
from sojourn_deviceplugin.config import Config, DeviceNodes
from sojourn_deviceplugin.plugin import Plugin


def until(condition: Callable[[], object], *, seconds: float = 60) -> float:
    """Wait for a condition, patiently: machines are busy. Returns how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        time.sleep(0.005)  # a pause between looks, not a wait for anything to have happened
    return time.monotonic() - start


@dataclass
class Rig:
    """One node. `start` a plugin, and again after `stop`."""

    folder: Path
    machine: fake.Machine
    kubelet: Kubelet
    settings: dict[str, object] = field(default_factory=dict)
    access: Access | None = None
    plugin: Plugin | None = None
    _loop: threading.Thread | None = None

    @property
    def config(self) -> Config:
        values = {
            "kubelet_dir": self.folder,
            "arbiter_dir": self.folder / "run",
            "state_dir": self.folder / "state",
            "device_nodes": DeviceNodes.NONE,
            "recovery_probes": 3,
        }
        return Config(**(values | self.settings))  # type: ignore[arg-type]

    def start(self) -> Plugin:
        self.machine.write()
        self.plugin = Plugin(self.config, node_name="node", access=self.access)
        self.plugin.start()
        self._loop = threading.Thread(target=self.plugin.run, daemon=True)
        self._loop.start()
        return self.plugin

    def stop(self) -> None:
        if self.plugin is not None and self._loop is not None:
            self.plugin.end()
            self._loop.join()
            self.plugin.stop()
        self.plugin = None

    def ready(self) -> Plugin:
        """Start, and wait until the kubelet counts healthy devices of every GPU."""
        plugin = self.start()
        until(lambda: all(self.kubelet.allocatable(self.resource(i)) for i in self.indices()))
        return plugin

    def indices(self) -> range:
        return range(len(self.machine.gpus))

    @staticmethod
    def resource(ordinal: int) -> str:
        return names.gpu_resource(ordinal)

    def healthy(self, ordinal: int) -> bool:
        devices = self.kubelet.devices(self.resource(ordinal))
        return bool(devices) and all(devices.values())

    def sick(self, ordinal: int) -> bool:
        devices = self.kubelet.devices(self.resource(ordinal))
        return bool(devices) and not any(devices.values())
