"""The device plugin as a process of its own, over a fake machine and a fake kubelet."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import yaml
from devicerig import until
from fakekubelet import Kubelet
from fakenvml import machine as fake
from nodeapi import Server


class Process:
    """Starts `python -m sojourn_deviceplugin` over a fake machine and a fake kubelet."""

    def __init__(self, folder: Path, library: Path, kubelet: Kubelet) -> None:
        self.folder = folder
        self.kubelet = kubelet
        self.machine = fake.Machine(folder / "scenario.json", gpus=[fake.gpu(0)])
        self.machine.write()
        self.settings = {
            "kubeletDir": str(folder),
            "arbiterDir": str(folder / "run"),
            "stateDir": str(folder / "state"),
            "deviceNodes": "none",
            "publish": False,
            "metricsPort": 0,
        }
        self._environment = os.environ | {
            "LD_LIBRARY_PATH": str(library.parent),
            "FAKE_NVML_SCENARIO": str(self.machine.path),
        }
        self.arguments: list[str] = []
        self.running: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.started = 0.0
        """When the process was last begun (monotonic)."""

    def command(self, *more: str) -> list[str]:
        file = self.folder / "config.yaml"
        draft = file.with_suffix(".new")
        draft.write_text(yaml.safe_dump(self.settings))
        draft.replace(file)
        module = [sys.executable, "-m", "sojourn_deviceplugin", "run", "--config", str(file)]
        return [*module, *self.arguments, *more]

    def publish(self, server: Server) -> None:
        """Write the GPUNode there."""
        self.settings["publish"] = True
        url = f"http://127.0.0.1:{server.server_port}"
        self.arguments = ["--api-server", url, "--node-name", "node"]

    def start(self) -> None:
        self.started = time.monotonic()
        with self._log.open("w") as stderr:
            self.running = subprocess.Popen(self.command(), env=self._environment, stderr=stderr)
        until(self._started, seconds=20)

    @property
    def _log(self) -> Path:
        return self.folder / "plugin.log"

    def log(self) -> str:
        return self._log.read_text()

    def _started(self) -> bool:
        assert self.running is not None
        assert self.running.poll() is None, self.log()
        for line in self.log().splitlines():
            entry = json.loads(line)
            if entry["message"] == "started":
                self.port = entry["port"]
                return True
        return False

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*more),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.running is not None
        self.running.send_signal(number)
        code = self.running.wait(10)
        self.running = None
        return code

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            text: str = answer.read().decode()
            return text

    def resident_mib(self) -> float:
        assert self.running is not None
        size: int = psutil.Process(self.running.pid).memory_info().rss
        return size / 2**20
