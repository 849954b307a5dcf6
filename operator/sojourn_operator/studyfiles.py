"""Nodes and sessions from CSV or YAML files, and recorded states from JSON, for `study`.

Parses at the edge: every fault names the file and the row.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from sojourn_api.gpus import find, speed_of
from sojourn_api.names import SILVER
from sojourn_api.shipped import SHIPPED_TIERS

from sojourn_operator import plan
from sojourn_operator.plan.record import from_data
from sojourn_operator.plan.simulate import Job
from sojourn_operator.tiers import planned

TIERS: Final = tuple(planned(tier) for tier in SHIPPED_TIERS)
"""For sessions from files: the tiers of a fresh installation."""


class StudyError(Exception):
    """A file cannot be read as what it should be."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, or the list of mappings in a YAML file."""
    try:
        if path.suffix.lower() in (".yaml", ".yml"):
            rows = yaml.safe_load(path.read_text())
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise StudyError(f"{path}: not a list of mappings")
            return rows
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, yaml.YAMLError) as error:
        raise StudyError(f"{path}: {error}") from error


def number(row: Mapping[str, Any], name: str, default: float = 0) -> float:
    """A numeric column; absent or empty is the default."""
    value = row.get(name)
    return default if value in (None, "") else float(str(value))


def nodes_from(path: Path) -> list[plan.Node]:
    """Nodes with GPUs of one model each; slices default to the model's GiB."""
    return [_node(path, row) for row in rows_of(path)]


def _node(path: Path, row: Mapping[str, Any]) -> plan.Node:
    name, model = str(row.get("name") or row.get("sn") or ""), str(row.get("model", ""))
    known = find(model)
    slices = int(number(row, "slices", known.memory_gib if known else 0))
    if not name or not slices:
        raise StudyError(
            f"{path}: node {name or '?'} needs a name, and slices as {model} is unknown"
        )
    peers = range(int(number(row, "gpu", number(row, "gpus", 1))))
    return plan.Node(
        name=name,
        cpu_milli=int(number(row, "cpu_milli", 1_000_000)),
        memory_bytes=int(number(row, "memory_mib", 1 << 24)) << 20,
        gpus=tuple(
            plan.Gpu(
                ordinal=index,
                uuid=f"{name}-{index}",
                model=model,
                slices=slices,
                speed=speed_of(model),
                links=tuple(peer for peer in peers if peer != index),
            )
            for index in peers
        ),
    )


def jobs_from(path: Path) -> list[Job]:
    """Sessions with their time of arrival and how long they run."""
    return [_job(path, row) for row in rows_of(path)]


def _job(path: Path, row: Mapping[str, Any]) -> Job:
    name = str(row.get("name", ""))
    if not name or not number(row, "slices"):
        raise StudyError(f"{path}: session {name or '?'} needs a name and slices")
    models = str(row.get("gpu_models") or "").replace("|", " ").split()
    session = plan.Session(
        key=name if "/" in name else f"default/{name}",
        tier=str(row.get("tier") or SILVER),
        request=plan.Request(
            slices=int(number(row, "slices")),
            share=int(number(row, "share")),
            max_shards=int(number(row, "max_shards", 1)),
            gpu_models=tuple(models),
            cpu_milli=int(number(row, "cpu_milli")),
            memory_bytes=int(number(row, "memory_mib")) << 20,
        ),
        phase=plan.Phase.WAITING,
        created=0.0,
        since=0.0,
        tenant=str(row.get("tenant") or ""),
        save_bytes=int(number(row, "save_mib")) << 20,
    )
    return Job(session, number(row, "arrival"), number(row, "duration", float("inf")))


def recorded(path: Path) -> plan.State:
    """A state that `explain --record` wrote."""
    try:
        return from_data(plan.State, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StudyError(
            f"{path}: not a recorded state ({error}); write one with --record"
        ) from error
