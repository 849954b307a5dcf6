"""The published GPU-sharing traces as requests: nodes, pods, and one seed's order of arrivals.

Reads the CSV files by path and never keeps a copy. Knows nothing of policies.
"""

import csv
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TUNE = 1.3
"""Arrivals go on until they ask for this multiple of all GPUs, as in the published runs."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One row of the node list; CPU and GPU in thousandths, memory in MiB."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One row of a pod list; `milli` is per GPU. `models` empty means any."""

    name: str
    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...]

    @property
    def demand(self) -> int:
        """GPU thousandths in all."""
        return self.gpus * self.milli


def read_machines(path: Path) -> list[Machine]:
    with path.open() as file:
        return [
            Machine(
                name=row["sn"],
                cpu=int(row["cpu_milli"]),
                memory=int(row["memory_mib"]),
                gpus=int(row["gpu"]),
                model=row["model"],
            )
            for row in csv.DictReader(file)
        ]


def read_pods(path: Path) -> list[Pod]:
    """By name; a pod of several GPUs takes each whole, whatever its row says."""
    with path.open() as file:
        pods = [
            Pod(
                name=row["name"],
                cpu=int(row["cpu_milli"]),
                memory=int(row["memory_mib"]),
                gpus=int(row["num_gpu"]),
                milli=int(row["gpu_milli"]) if row["num_gpu"] == "1" else 1000,
                models=tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|")))),
            )
            for row in csv.DictReader(file)
        ]
    return sorted(pods, key=lambda pod: pod.name)


def arrivals(pods: list[Pod], *, capacity: int, rng: random.Random) -> list[Pod]:
    """Shuffled, then tuned to 130 %: more drawn with replacement, or random ones deleted."""
    order = pods[:]
    rng.shuffle(order)
    asked = sum(pod.demand for pod in order)
    limit = TUNE * capacity
    while asked > limit:
        asked -= order.pop(rng.randrange(len(order))).demand
    if len(order) < len(pods):
        return order
    while True:
        pod = rng.choice(pods)
        if asked + pod.milli > limit:
            return order
        order.append(pod)
        asked += pod.demand


def capacity_of(machines: Iterable[Machine]) -> int:
    """GPU thousandths of the cluster."""
    return 1000 * sum(machine.gpus for machine in machines)
