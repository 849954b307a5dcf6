"""Opens a model for a device: the one door through which the rest of the runtime gets a runner."""

import os
from pathlib import Path

from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Runner, Segment, StopFlag
from sojourn_runtime.model.quantization import Kind
from sojourn_runtime.model.shards.split import Shard
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
    weights: Weights,
    *,
    device: str = "cpu",
    num_blocks: int,
    threads: int | None = None,
    shard: Shard | None = None,
) -> Runner:
    """A runner over opened weights: `cpu`, `cpu-amx` and `cuda` row-exact, `eager` and
    `cuda-eager` not.

    As a `shard` it computes its part of every pass, and its KV holds its own key heads.
    """
    threads = threads or usable_cpus()
    match device:
        case "cpu":
            return CpuRunner(weights, num_blocks=num_blocks, threads=threads, shard=shard)
        case "cpu-amx":
            return CpuRunner(
                weights, num_blocks=num_blocks, threads=threads, shard=shard, pairs=True
            )
        case "eager" | "cuda-eager" if shard is not None:
            raise unsplit(device)
        case "eager" | "cuda-eager" | "cuda":
            if set(weights.kinds.values()) != {Kind.BF16}:
                raise InvalidConfiguration(
                    f"device {device} computes in bf16 only; use it with quantization bf16, or "
                    "device cpu"
                )
            try:
                if device == "cuda":
                    return _on_cuda(weights, num_blocks=num_blocks, shard=shard)
                return _eager(weights, device=device, num_blocks=num_blocks, threads=threads)
            except ModuleNotFoundError as error:
                raise InvalidConfiguration(
                    f"device {device} needs {error.name}: install {error.name} or use --device cpu"
                ) from error
        case _:
            raise InvalidConfiguration(
                f"device {device!r} is unknown; use cpu, cpu-amx, cuda, eager or cuda-eager"
            )


def unsplit(device: str) -> InvalidConfiguration:
    """The error of a device that does not compute in shards."""
    return InvalidConfiguration(
        f"device {device} computes in one process; use --shards 1, or one of the devices cpu, "
        "cpu-amx and cuda"
    )


def _on_cuda(weights: Weights, *, num_blocks: int, shard: Shard | None) -> Runner:
    from sojourn_runtime.model.cuda.runner import CudaRunner  # noqa: PLC0415 - imports torch

    return CudaRunner.of(weights, num_blocks=num_blocks, shard=shard)


def _eager(weights: Weights, *, device: str, num_blocks: int, threads: int) -> Runner:
    from sojourn_runtime.model.eager import EagerRunner  # noqa: PLC0415 - imports torch

    return EagerRunner(weights, num_blocks=num_blocks, device=device, threads=threads)


def usable_cpus() -> int:
    """Processors this process may run on, by affinity and by the container's CPU limit."""
    allowed = len(os.sched_getaffinity(0))
    limit = Path("/sys/fs/cgroup/cpu.max")
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
