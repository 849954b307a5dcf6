"""The plugin's settings: one YAML file, read whole, checked, and turned into a frozen value.

Defaults stand here alone (the chart repeats them, a test compares). No environment, no flags.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
from sojourn_api import gpus, names

MIB: Final = 1024**2
GIB: Final = 1024**3
SMALLEST_SLICE: Final = 256 * MIB
"""The kubelet is sent one device for each slice, all of them at every change (564 for an H200 at
this size); a session's workspace alone takes two, so finer slices would gain it no room."""


class ConfigError(Exception):
    """The file is absent or a setting is wrong; the text names the setting and what it may be."""


class DeviceList(StrEnum):
    """How a container gets its GPUs."""

    NODES = "device-nodes"
    CDI = "cdi"


class DeviceNodes(StrEnum):
    """Whether /dev/nvidia* is handed out: `auto` where it exists, `none` never (simulation)."""

    AUTO = "auto"
    NONE = "none"


class MpsThreads(StrEnum):
    """How much of a GPU's multiprocessors an MPS client may use: as much as of its memory, or all
    (the arbiter then says who computes, and Gold has the whole GPU while it does).
    """

    SLICES = "slices"
    ALL = "all"


class Policy(StrEnum):
    """What is asked for a pod that takes more than it was granted: nothing but that it is known, or
    that the operator pauses its session.
    """

    REPORT = "report"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, by the names of the file in camelCase."""

    slice_bytes: int = GIB
    slice_bytes_by_model: tuple[tuple[str, int], ...] = ()
    reserved_bytes: int = 256 * MIB
    """Kept back on each GPU, besides what the driver reserves for itself."""
    kubelet_dir: Path = Path("/var/lib/kubelet")
    arbiter_dir: Path = Path(names.ARBITER_DIR)
    state_dir: Path = Path("/var/lib/sojourn/deviceplugin")
    """Survives reboots: ordinals and condemned GPUs."""
    device_list_strategy: DeviceList = DeviceList.NODES
    device_nodes: DeviceNodes = DeviceNodes.AUTO
    cdi_kind: str = "nvidia.com/gpu"
    probe_seconds: int = 1
    nvml_patience_seconds: int = 15
    """NVML that has not answered for so long makes its GPUs unhealthy."""
    recovery_probes: int = 5
    """Good probes in a row that bring back a GPU whose fault allows it."""
    hold_seconds: int = 120
    """The longest that one rise of an arbiter flag counts."""
    stale_milliseconds: int = 1000
    """A runtime that has not beaten for so long is taken for stopped."""
    host_proc: Path | None = None
    """The host's /proc as mounted in the pod (or /proc itself with hostPID): memory is then told
    apart by pod, exactly; without it nobody knows whose process is whose."""
    host_cgroup: Path | None = None
    """The host's cgroup v2 hierarchy, writable: the driver then limits the memory of pods, where it
    can (r615 and later)."""
    mps_pipe_dir: Path | None = None
    """Pipe directory of an MPS control daemon, at the same path as on the host: containers become
    its clients while it answers."""
    mps_shm_dir: Path | None = None
    """What that daemon has as /dev/shm; containers get it as theirs."""
    mps_threads: MpsThreads = MpsThreads.SLICES
    offenders: Policy = Policy.REPORT
    process_names: bool = False
    """Name processes that use foreign memory in messages; needs `hostProc` to mean anything."""
    metrics_port: int = 9400
    publish: bool = True
    """Write the GPUNode; off where no API server is (a test, a bare machine)."""

    def slice_bytes_of(self, model: str) -> int:
        """Slice size on GPUs of this model, by any of its names."""
        for name, size in self.slice_bytes_by_model:
            if gpus.same_model(name, model):
                return size
        return self.slice_bytes

    @property
    def plugin_dir(self) -> Path:
        return self.kubelet_dir / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"


_SUFFIX: Final = {"": 1, "Ki": 1024, "Mi": MIB, "Gi": GIB}


def size(value: object, *, key: str) -> int:
    """Bytes of `1073741824`, `"1Gi"` or `"512Mi"`."""
    match = re.fullmatch(r"(\d{1,15})(Ki|Mi|Gi|)", str(value))
    if match is None or isinstance(value, bool):
        raise ConfigError(f"{key}: {value!r} is no size; write bytes or a number with Ki, Mi or Gi")
    return int(match[1]) * _SUFFIX[match[2]]


def _slice(value: object, *, key: str) -> int:
    found = size(value, key=key)
    if found < SMALLEST_SLICE:
        raise ConfigError(f"{key}: {value!r} is below 256Mi, the smallest slice")
    return found


def _number(value: object, *, key: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{key}: {value!r} is no whole number from {low} to {high}")
    return value


def _folder(value: object, *, key: str) -> Path:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ConfigError(f"{key}: {value!r} is no absolute path")
    return Path(value)


def _flag(value: object, *, key: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key}: {value!r} is neither true nor false")
    return value


def _choice(kind: type[StrEnum], value: object, *, key: str) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError as error:
        raise ConfigError(f"{key}: {value!r} is none of {', '.join(kind)}") from error


def _models(value: object, *, key: str) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, dict):
        raise ConfigError(f"{key}: {value!r} is no mapping of GPU model to slice size")
    return tuple((str(name), _slice(part, key=f"{key}.{name}")) for name, part in value.items())


def _cdi_kind(value: object, *, key: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9.-]+/[A-Za-z0-9_-]+", value):
        raise ConfigError(f"{key}: {value!r} is no CDI kind; write VENDOR/CLASS as nvidia.com/gpu")
    return value


_LIMITS: Final = {
    "probeSeconds": (1, 60),
    "nvmlPatienceSeconds": (2, 600),
    "recoveryProbes": (1, 1000),
    "holdSeconds": (1, 86400),
    "staleMilliseconds": (100, 60000),
    "metricsPort": (0, 65535),
}


_CHOICES: Final[Mapping[str, type[StrEnum]]] = {
    "deviceListStrategy": DeviceList,
    "deviceNodes": DeviceNodes,
    "mpsThreads": MpsThreads,
    "offenders": Policy,
}
_FOLDERS: Final = frozenset(
    {"kubeletDir", "arbiterDir", "stateDir", "hostProc", "hostCgroup", "mpsPipeDir", "mpsShmDir"}
)


def _value(key: str, value: object) -> object:  # noqa: PLR0911 - one line per kind of setting
    if key in _LIMITS:
        low, high = _LIMITS[key]
        return _number(value, key=key, low=low, high=high)
    if key in _CHOICES:
        return _choice(_CHOICES[key], value, key=key)
    if key in _FOLDERS:
        return _folder(value, key=key)
    match key:
        case "sliceBytes":
            return _slice(value, key=key)
        case "sliceBytesByModel":
            return _models(value, key=key)
        case "reservedBytes":
            return size(value, key=key)
        case "processNames" | "publish":
            return _flag(value, key=key)
        case "cdiKind":
            return _cdi_kind(value, key=key)
        case _:
            raise AssertionError(key)  # a setting of `Config` that is read nowhere


def camel(field: str) -> str:
    """The file's name of a setting."""
    first, *rest = field.split("_")
    return first + "".join(word.title() for word in rest)


def parse(raw: Mapping[str, object]) -> Config:
    """Check a mapping as read from the file; unknown settings are refused, not ignored."""
    known = {camel(field.name): field.name for field in fields(Config)}
    unknown = sorted(str(key) for key in raw if key not in known)
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such setting; there are {', '.join(sorted(known))}")
    values: dict[str, Any] = {known[key]: _value(key, value) for key, value in raw.items()}
    return Config(**values)


def load(path: Path) -> Config:
    """Read and check the file, and that the host's folders that it names are there: without
    /proc, the sessions' own memory would count as foreign.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: no UTF-8, or no such date
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(raw, dict | None):
        raise ConfigError(f"{path}: must be a mapping of settings")
    config = parse(raw or {})
    for key, folder in (("hostProc", config.host_proc), ("hostCgroup", config.host_cgroup)):
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"{path}: {key}: {folder} is no folder; mount it, or leave it out")
    return config
