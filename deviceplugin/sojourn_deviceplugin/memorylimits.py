"""NVML's calls for memory limits per cgroup: there since driver r615, for root, without MIG.

Beside `nvml` only because it is a subject of its own; the same threads call it. What limits there
shall be is `limits`'.
"""

from pathlib import Path
from typing import Any, Final

import pynvml

from sojourn_deviceplugin.limits import LimitError

NOWHERE: Final = b"/sys/fs/cgroup"
"""What the probe asks for: the answer "not found" is one of a driver that could."""


def supported(handle: Any) -> bool:
    """Whether the driver can limit memory on this GPU; not whether we may."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = NOWHERE
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError_NotFound:
        return True
    except pynvml.NVMLError:
        return False
    return True


def read(uuid: str, cgroup: Path) -> int | None:
    """What a cgroup may use of a GPU, None without a limit: its own, or the nearest above it."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = str(cgroup).encode()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError as error:
        raise LimitError(f"limit cannot be read: {error}") from error
    hard = int(limits.hardLimit)
    return None if hard == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX else hard


def write(uuid: str, cgroup: Path, size: int | None) -> None:
    """Set the hard limit, or lift it (None); nothing is reserved."""
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace = str(cgroup).encode()
    limits.softLimit = 0
    limits.hardLimit = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX if size is None else size
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError as error:
        raise LimitError(f"limit cannot be set: {error}") from error
