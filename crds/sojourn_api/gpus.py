"""How fast each GPU model is, and what one is worth in thousandths of an A100-80GB.

The table is data (`gpus.json`, each row with its source); a model that is not in it has no
speed, never a silent 1.0. Speeds are the vendor's figures, not measurements: memory, and
dense bf16 (fp16 where bf16 is absent). Beside it stands what every session takes of a GPU.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

REFERENCE_TBPS: Final = 2.039
REFERENCE_TFLOPS: Final = 312.0
"""The A100-80GB SXM, which is worth 1000 at every decode fraction."""
WORKSPACE_BYTES: Final = 512 * 1024**2
"""On each GPU of a session beside weights and KV: activations and the allocator's slack."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Memory bandwidth in TB/s and dense bf16 TFLOP/s."""

    tbps: float
    tflops: float

    def capacity(self, decode_fraction: int) -> int:
        """Worth in thousandths of an A100.

        `decode_fraction` is the part of a model's time that bandwidth bounds, in thousandths.
        """
        by_bandwidth = decode_fraction * REFERENCE_TBPS / self.tbps
        by_compute = (1000 - decode_fraction) * REFERENCE_TFLOPS / self.tflops
        return round(1_000_000 / (by_bandwidth + by_compute))


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row. `short` is what printer columns show; `names` are NVML's, less the word NVIDIA.

    `arch` is what kernels are compiled for, as `sm90`.
    """

    short: str
    names: tuple[str, ...]
    memory_gib: int
    arch: str
    speed: Speed
    source: str


@cache
def table() -> tuple[GpuModel, ...]:
    """All known models, in the order of the file."""
    rows = json.loads((Path(__file__).parent / "gpus.json").read_text())
    return tuple(
        GpuModel(
            short=row["short"],
            names=tuple(row["names"]),
            memory_gib=row["memoryGiB"],
            arch=row["arch"],
            speed=Speed(tbps=row["tbps"], tflops=row["tflops"]),
            source=row["source"],
        )
        for row in rows["models"]
    )


@cache
def _by_name() -> dict[str, GpuModel]:
    found = {_plain(name): model for model in table() for name in model.names}
    return found | {_plain(model.short): model for model in table()}


def _plain(name: str) -> str:
    words = name.replace("_", " ").replace("-", " ").upper().split()
    return " ".join(word for word in words if word != "NVIDIA")


def find(name: str) -> GpuModel | None:
    """The model that NVML, a label or a person calls `name`; case and dashes do not matter."""
    return _by_name().get(_plain(name))


@lru_cache(maxsize=4096)
def same_model(left: str, right: str) -> bool:
    """Whether two names mean one model; names unknown to the table are compared as text."""
    first, second = find(left), find(right)
    if first is None or second is None:
        return _plain(left) == _plain(right)
    return first is second


def speed_of(name: str) -> Speed | None:
    """The speed of a model, None if the table does not know it."""
    model = find(name)
    return None if model is None else model.speed


def speeds(given: Mapping[str, Speed]) -> Callable[[str], Speed | None]:
    """`speed_of`, but for the models that are given one."""

    def found(name: str) -> Speed | None:
        own = (speed for other, speed in given.items() if same_model(other, name))
        return next(own, None) or speed_of(name)

    return found


def capacity(name: str, *, decode_fraction: int) -> int | None:
    """What one GPU of this name is worth, in thousandths of an A100; None for an unknown name."""
    speed = speed_of(name)
    return None if speed is None else speed.capacity(decode_fraction)


def arch_of(name: str) -> str:
    """What kernels are compiled for on GPUs of this name; empty for an unknown one."""
    model = find(name)
    return "" if model is None else model.arch


def arch_in(kernel_class: str) -> str:
    """The part of a kernel class that the GPU decides; empty where it is the same on all of them.

    The rest of it follows from the weights, and from what the sessions' pods run.
    """
    found = re.search(r"(?<![a-z0-9])sm[0-9]+(?![a-z0-9])", kernel_class)
    return found[0] if found else ""
