"""The machine that the fake NVML pretends to be, changed while it runs; and the library's build."""

import ctypes
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("fakenvml.c")
LIBRARY = "libnvidia-ml.so.1"

A100 = "NVIDIA A100-SXM4-80GB"
H100 = "NVIDIA H100 80GB HBM3"
H200 = "NVIDIA H200"


def build(folder: Path) -> Path:
    """Compile into `folder`, as the head of the source says."""
    library = folder / LIBRARY
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run(["gcc", *flags, "-o", library, SOURCE, "-lpthread"], check=True)
    return library


def preload(library: Path) -> None:
    """Let nvidia-ml-py find this library in this process: it asks for the same soname."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-000000000000"


def gpu(number: int, *, name: str = A100, mib: int = 81920, **more: object) -> dict[str, Any]:
    """One GPU of the scenario; `more` by the names in the head of the C source."""
    return {"uuid": uuid(number), "name": name, "memory_mib": mib, "minor": number} | more


@dataclass
class Machine:
    """Writes the scenario; the running library sees each change at its next call."""

    path: Path
    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str = "580.95.05"
    epoch: int = 1
    error: str = ""
    delays: dict[str, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def write(self) -> None:
        scenario = {
            "driver": self.driver,
            "epoch": self.epoch,
            "error": self.error,
            "delay_ms": self.delays,
            "gpus": self.gpus,
            "events": self.events,
        }
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(scenario))
        draft.rename(self.path)

    def set(self, index: int, **values: object) -> None:
        """Change facts of one GPU."""
        self.gpus[index] |= values
        self.write()

    def xid(self, index: int, number: int) -> None:
        """The driver reports an error event."""
        self.events.append({"seq": len(self.events) + 1, "gpu": index, "xid": number})
        self.write()

    def restart_driver(self) -> None:
        self.epoch += 1
        self.write()
