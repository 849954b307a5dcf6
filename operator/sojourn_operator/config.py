"""The operator's settings: one YAML file (the chart's ConfigMap), parsed once at start.

No flags and no environment here (see `cli`). An unknown key is an error: a typing mistake.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final, cast

import yaml
from sojourn_api.gpus import Speed

MIB: Final = 1024 * 1024
DEVICES: Final = ("cuda", "cuda-eager", "cpu", "cpu-amx")
LEAST_TBPS: Final = 0.01
LEAST_TFLOPS: Final = 1.0
"""Below them a unit is wrong: the slowest GPU of the table has some ten times as much."""
DEFRAGMENTATION: Final = ("Off", "DryRun", "On")


class ConfigError(Exception):
    """The settings cannot be used; the text names the file and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Which Lease the replicas compete for."""

    name: str = "sojourn-operator"
    namespace: str = "sojourn-system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings; the defaults are those of the chart."""

    session_image: str = "sojourn-runtime:latest"
    session_image_pull_policy: str = "IfNotPresent"
    store_uri: str = "file:///var/lib/sojourn/store"
    store_claim: str = "sojourn-store"
    models_claim: str = "sojourn-models"
    device: str = "cuda"
    priority_class_name: str = ""
    """Of session pods whose template names none; a PriorityClass with `preemptionPolicy: Never`."""
    runtime_class_name: str = ""
    """Of session pods: where NVIDIA's container runtime is not the node's default."""
    headless_services: bool = False
    """Of sessions that start for the first time: see `services`."""
    extra_volumes: tuple[Mapping[str, Any], ...] = ()
    extra_volume_mounts: tuple[Mapping[str, Any], ...] = ()
    extra_env: tuple[Mapping[str, Any], ...] = ()
    lease: Lease = Lease()
    status_poll_seconds: float = 5.0
    silent_polls: int = 3
    """So many polls in a row without an answer make a session NotAnswering: one may be slow, and
    with the defaults the node controller takes three times as long to notice a dead node."""
    lost_node_seconds: float = 60.0
    pending_seconds: float = 60.0
    """How long something may keep a pod from running before that start has failed."""
    store_bytes_per_second: int = 200 * MIB
    """What a pause may count on for its grace period. A guess: a modest network disk."""
    relist_seconds: float = 300.0
    defragmentation: str = "Off"
    """Whether sessions are moved for the sake of packing; `DryRun` only says which would be."""
    moves_per_minute: int = 2
    """So many at most; each is a pause. A guess: a pause of some seconds every half a minute."""
    gpu_speeds: tuple[Mapping[str, Any], ...] = ()
    """Of models that the table lacks, or of which better figures are known."""
    decision_milliseconds: float = 800.0
    """A decision beyond it gives the plan back to the generation before."""

    @property
    def file_store(self) -> bool:
        """Whether snapshots lie on a mounted volume rather than in an object store."""
        return self.store_uri.startswith("file:")

    @property
    def speeds(self) -> Mapping[str, Speed]:
        """By the name of a GPU model."""
        return dict(_speed(one) for one in self.gpu_speeds)


def _speed(one: Mapping[str, Any]) -> tuple[str, Speed]:
    model, *speeds = (one.get(name) for name in ("model", "tbps", "tflops"))
    numbers = [
        float(found)
        for found in speeds
        if isinstance(found, int | float) and not isinstance(found, bool) and isfinite(found)
    ]
    if len(one) != 3 or not isinstance(model, str) or not model or len(numbers) != 2:
        raise ConfigError("must have model, tbps and tflops, both numbers, and nothing else")
    tbps, tflops = numbers
    if tbps < LEAST_TBPS or tflops < LEAST_TFLOPS:
        raise ConfigError(
            f"has {tbps:g} TB/s and {tflops:g} TFLOPS of bf16; no GPU is below {LEAST_TBPS:g} and "
            f"{LEAST_TFLOPS:g}: are the units right?"
        )
    return model, Speed(tbps=tbps, tflops=tflops)


def load(path: Path | None) -> Config:
    """The settings in `path`; None means all defaults."""
    if path is None:
        return Config()
    try:
        raw = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    return parse(raw, source=str(path))


def parse(raw: object, *, source: str) -> Config:
    """The settings in a mapping with camelCase keys."""
    values = _fields(raw, kind=Config, where=source)
    if "lease" in values:
        values["lease"] = Lease(**_fields(values["lease"], kind=Lease, where=f"{source}: lease"))
    config = Config(**values)
    for name in (
        "status_poll_seconds",
        "silent_polls",
        "lost_node_seconds",
        "pending_seconds",
        "relist_seconds",
        "moves_per_minute",
        "decision_milliseconds",
    ):
        if getattr(config, name) <= 0:
            raise ConfigError(f"{source}: {_camel(name)} must be more than 0")
    for number, one in enumerate(config.gpu_speeds):
        try:
            _speed(one)
        except ConfigError as error:
            raise ConfigError(f"{source}: gpuSpeeds[{number}] {error}") from error
    for key, known in (("device", DEVICES), ("defragmentation", DEFRAGMENTATION)):
        if (value := getattr(config, key)) not in known:
            raise ConfigError(f"{source}: {key} must be one of {', '.join(known)}, not {value!r}")
    return config


def _fields(raw: object, *, kind: type[Config | Lease], where: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where}: must be a mapping of settings")
    known = {_camel(field.name): field.name for field in fields(kind)}
    unknown = sorted(str(key) for key in raw if key not in known)
    if unknown:
        keys = ", ".join(known)
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; the keys are {keys}")
    return {
        known[key]: _typed(value, getattr(kind(), known[key]), where=f"{where}: {key}")
        for key, value in raw.items()
        if value is not None
    }


def _typed(value: object, default: object, *, where: str) -> object:
    """`value` in the type of the default that it replaces."""
    if isinstance(default, tuple):
        if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
            return tuple(cast("list[Mapping[str, Any]]", value))
        raise ConfigError(f"{where}: must be a list of objects")
    if isinstance(default, Lease):
        return value
    wanted: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
        quoted = " (Off and On need quotes in YAML)" if isinstance(value, bool) else ""
        raise ConfigError(f"{where}: must be {wanted[0].__name__}, not {value!r}{quoted}")
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
