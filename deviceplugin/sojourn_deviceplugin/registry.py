"""The GPUs that this node has ever had, in a file that survives reboots.

Ordinals are kept by UUID and never given to another GPU, since they are names of resources in
running pods (NVML's own indices shift when a GPU is lost). What has condemned a GPU is kept, too:
a restart of the plugin heals nothing.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sojourn_deviceplugin import slices
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import GpuFacts
from sojourn_deviceplugin.health import Fault, State
from sojourn_deviceplugin.xids import Restart

FILE = "gpus.json"
VERSION = 1


class RegistryError(Exception):
    """The file cannot be read or written; the text names it and what to do."""


@dataclass(frozen=True, slots=True)
class Known:
    """One GPU: its lasting names, and the slices that its pods count in."""

    uuid: str
    ordinal: int
    model: str
    memory_bytes: int
    slice_bytes: int
    slices: int
    minor: int
    health: State = State()  # noqa: RUF009 - frozen, of another module

    @property
    def ids(self) -> tuple[str, ...]:
        return slices.device_ids(self.uuid, self.slices)


def plan(facts: GpuFacts, config: Config) -> tuple[int, int]:
    """Slice size and number of slices for a GPU as it is now; none at all in MIG mode."""
    size = config.slice_bytes_of(facts.model)
    if facts.mig:
        return size, 0
    number = slices.count(
        total=facts.total_bytes,
        driver=facts.reserved_bytes,
        reserve=config.reserved_bytes,
        slice_bytes=size,
    )
    return size, number


def enroll(
    known: Mapping[str, Known], facts: Iterable[GpuFacts], config: Config
) -> dict[str, Known]:
    """Give new GPUs the next ordinals, in NVML's order; known ones stay as they are."""
    found = dict(known)
    for gpu in facts:
        if gpu.uuid in found or gpu.error:
            continue
        size, number = plan(gpu, config)
        found[gpu.uuid] = Known(
            uuid=gpu.uuid,
            ordinal=1 + max((entry.ordinal for entry in found.values()), default=-1),
            model=gpu.model,
            memory_bytes=gpu.total_bytes,
            slice_bytes=size,
            slices=number,
            minor=gpu.minor,
        )
    return found


def replan(entry: Known, facts: GpuFacts, config: Config) -> Known:
    """The entry of an empty GPU by today's settings, driver and MIG mode."""
    size, number = plan(facts, config)
    return replace(
        entry,
        slice_bytes=size,
        slices=number,
        model=facts.model,
        memory_bytes=facts.total_bytes,
        minor=facts.minor,
    )


class Registry:
    """The file. Written whole, beside, and renamed, so that a crash leaves the old or the new."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def load(self) -> dict[str, Known]:
        """All known GPUs by UUID; none before the first start."""
        try:
            raw = json.loads(self._path.read_text())
            if raw["version"] != VERSION:
                raise RegistryError(f"{self._path}: version {raw['version']}, not {VERSION}")
            return {row["uuid"]: _known(row) for row in raw["gpus"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RegistryError(
                f"{self._path}: unreadable ({error}); restore it, or remove it when no session "
                "runs on this node (ordinals are then given anew)"
            ) from error

    def save(self, known: Mapping[str, Known]) -> None:
        """Write all entries, and see them to the disk."""
        rows = [_row(entry) for entry in sorted(known.values(), key=lambda e: e.ordinal)]
        draft = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("w") as file:
                json.dump({"version": VERSION, "gpus": rows}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise RegistryError(f"{self._path}: cannot be written: {error}") from error


def _row(entry: Known) -> dict[str, object]:
    fault = entry.health.fault
    return {
        "uuid": entry.uuid,
        "ordinal": entry.ordinal,
        "model": entry.model,
        "memoryBytes": entry.memory_bytes,
        "sliceBytes": entry.slice_bytes,
        "slices": entry.slices,
        "minor": entry.minor,
        "away": entry.health.away,
        "asked": entry.health.asked,
        "fault": fault and {"xid": fault.xid, "restart": str(fault.restart), "boot": fault.boot},
    }


def _known(row: Mapping[str, Any]) -> Known:
    fault = row["fault"]
    return Known(
        uuid=row["uuid"],
        ordinal=row["ordinal"],
        model=row["model"],
        memory_bytes=row["memoryBytes"],
        slice_bytes=row["sliceBytes"],
        slices=row["slices"],
        minor=row["minor"],
        health=State(
            away=row["away"],
            asked=row["asked"],
            # The first NVML session of this process is no proof of a restarted driver.
            fault=fault and Fault(fault["xid"], Restart(fault["restart"]), fault["boot"], 1),
        ),
    )
