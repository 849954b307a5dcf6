"""Opens a model for a device: the one door through which the rest of the runtime gets a runner."""

import os
from pathlib import Path

from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Runner, Segment, StopFlag
from sojourn_runtime.model.weights import Weights, open_weights

__all__ = [
    "INTERRUPTED",
    "Interrupted",
    "Runner",
    "Segment",
    "StopFlag",
    "make_runner",
    "open_runner",
    "usable_cpus",
]


def open_runner(
    model_uri: str,
    *,
    device: str = "cpu",
    cache_dir: Path,
    num_blocks: int,
    threads: int | None = None,
    digest: str | None = None,
) -> Runner:
    """Map (or first convert) the weights of `model_uri` and open them; raises a `ModelError`
    that names the remedy.
    """
    weights = open_weights(model_uri, cache_dir=cache_dir, digest=digest)
    return make_runner(weights, device=device, num_blocks=num_blocks, threads=threads)


def make_runner(
    weights: Weights, *, device: str = "cpu", num_blocks: int, threads: int | None = None
) -> Runner:
    """A runner over opened weights: `cpu`, or `eager` and `cuda` by torch."""
    threads = threads or usable_cpus()
    match device:
        case "cpu":
            return CpuRunner(weights, num_blocks=num_blocks, threads=threads)
        case "eager" | "cuda":
            from sojourn_runtime.model.eager import EagerRunner  # noqa: PLC0415 - imports torch

            return EagerRunner(weights, num_blocks=num_blocks, device=device, threads=threads)
        case _:
            raise InvalidConfiguration(f"device {device!r} is unknown; use cpu, eager or cuda")


def usable_cpus() -> int:
    """Processors this process may run on, by affinity and by the container's CPU limit."""
    allowed = len(os.sched_getaffinity(0))
    limit = Path("/sys/fs/cgroup/cpu.max")
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
