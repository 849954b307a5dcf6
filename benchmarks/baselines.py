"""The policies that the field compares with, re-implemented over arrays: one score table, class
by node.

Written from the published description of the experiment, and shares no code with the operator,
so that the two can be held against each other. Only the column of the node that changed is
scored again.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from openb import Machine, Pod

WIDEST = 8
"""GPUs of the largest machine."""
NEVER = -(1 << 30)
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Kind:
    """What scores depend on in a pod."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...]


def kind_of(pod: Pod) -> Kind:
    return Kind(pod.cpu, pod.memory, pod.gpus, pod.milli, pod.models)


class Fleet:
    """Machines in their order, what is left of each, and which kinds of pod there are."""

    def __init__(self, machines: list[Machine], pods: list[Pod]) -> None:
        self.machines = machines
        self.cpu = np.array([m.cpu for m in machines])
        self.memory = np.array([m.memory for m in machines])
        self.gpu = np.array([[1000 if i < m.gpus else -1 for i in range(WIDEST)] for m in machines])
        kinds = sorted({kind_of(pod) for pod in pods}, key=repr)
        self.kinds = {kind: index for index, kind in enumerate(kinds)}
        self.k_cpu = np.array([k.cpu for k in kinds])
        self.k_memory = np.array([k.memory for k in kinds])
        self.k_gpus = np.array([k.gpus for k in kinds])
        self.k_milli = np.array([k.milli if k.gpus else 0 for k in kinds])
        self.k_share = (self.k_gpus == 1) & (self.k_milli < 1000)
        self.k_demand = self.k_gpus * self.k_milli
        models = sorted({m.model for m in machines})
        self.k_allows = {
            model: np.array([not k.models or model in k.models for k in kinds]) for model in models
        }

    def feasible(
        self, node: int, *, memory: bool = True
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which kinds the node can take now."""
        gpu = self.gpu[node]
        enough = (gpu[None, :] >= np.maximum(self.k_milli, 1)[:, None]).sum(1) >= self.k_gpus
        fits = enough & (self.cpu[node] >= self.k_cpu)
        if memory:
            fits &= self.memory[node] >= self.k_memory
        return np.asarray(fits & self.k_allows[self.machines[node].model])

    def free(self, node: int) -> int:
        """GPU thousandths left on the node."""
        return int(np.maximum(self.gpu[node], 0).sum())

    def take(self, node: int, kind: int, gpus: tuple[int, ...]) -> None:
        self._add(node, kind, gpus, -1)

    def give(self, node: int, kind: int, gpus: tuple[int, ...]) -> None:
        self._add(node, kind, gpus, 1)

    def _add(self, node: int, kind: int, gpus: tuple[int, ...], sign: int) -> None:
        self.cpu[node] += sign * self.k_cpu[kind]
        self.memory[node] += sign * self.k_memory[kind]
        for index in gpus:
            self.gpu[node, index] += sign * self.k_milli[kind]

    def tightest(self, node: int, kind: int) -> tuple[int, ...]:
        """Best-fit inside a node: the fullest GPUs that fit; whole GPUs in index order."""
        count, milli = int(self.k_gpus[kind]), int(self.k_milli[kind])
        fitting = [int(i) for i in np.flatnonzero(self.gpu[node] >= milli)]
        fitting.sort(key=lambda index: (self.gpu[node, index], index))
        return tuple(sorted(fitting[:count]))


Column = Callable[[Fleet, int], Ints]


def dot_product(fleet: Fleet, node: int) -> Ints:
    cpu = fleet.cpu[node] / 128_000 * fleet.k_cpu / 128_000
    gpu = fleet.free(node) / 8000 * fleet.k_demand / 8000
    return np.asarray((100 * (1 - 0.5 * (cpu + gpu))).astype(np.int64))


def best_fit(fleet: Fleet, node: int) -> Ints:
    cpu = (fleet.cpu[node] - fleet.k_cpu) / 128_000
    gpu = (fleet.free(node) - fleet.k_demand) / 8000
    return np.asarray((100 * (1 - 0.5 * cpu - 0.5 * gpu)).astype(np.int64))


def gpu_best_fit(fleet: Fleet, node: int) -> Ints:
    return np.asarray(-(fleet.free(node) - fleet.k_demand).astype(np.int64))


def first_fit(fleet: Fleet, node: int) -> Ints:
    del node
    return np.zeros(len(fleet.k_cpu), dtype=np.int64)


class TablePlacer:
    """One policy over a fleet; `place` answers node and GPUs, or None."""

    def __init__(self, fleet: Fleet, column: Column | None, *, rng: random.Random) -> None:
        self.fleet = fleet
        self._column = column
        self._rng = rng
        count = len(fleet.machines)
        self._table = np.full((len(fleet.kinds), count), NEVER, dtype=np.int64)
        for node in range(count):
            self._rescore(node)

    def place(self, pod: Pod) -> tuple[int, tuple[int, ...]] | None:
        kind = self.fleet.kinds[kind_of(pod)]
        row = self._table[kind]
        if self._column is None:
            fitting = np.flatnonzero(row > NEVER)
            if not len(fitting):
                return None
            node = int(self._rng.choice(fitting))
        else:
            node = int(row.argmax())
            if row[node] == NEVER:
                return None
        gpus = self.choose(node, kind)
        self.fleet.take(node, kind, gpus)
        self._rescore(node)
        return node, gpus

    def remove(self, pod: Pod, node: int, gpus: tuple[int, ...]) -> None:
        self.fleet.give(node, self.fleet.kinds[kind_of(pod)], gpus)
        self._rescore(node)

    def choose(self, node: int, kind: int) -> tuple[int, ...]:
        """The GPUs inside the node."""
        fleet = self.fleet
        if self._column is None and fleet.k_share[kind]:
            fitting = np.flatnonzero(fleet.gpu[node] >= fleet.k_milli[kind])
            return (int(self._rng.choice(fitting)),)
        return fleet.tightest(node, kind)

    def scores(self, node: int) -> Ints:
        if self._column is None:
            return np.zeros(len(self.fleet.kinds), dtype=np.int64)
        return self._column(self.fleet, node)

    def _rescore(self, node: int) -> None:
        fits = self.fleet.feasible(node)
        self._table[:, node] = np.where(fits, self.scores(node), NEVER)


@dataclass(frozen=True, slots=True)
class Typical:
    """The mix that FGD measures fragments against: kinds without memory, by popularity."""

    cpu: Ints
    milli: Ints
    gpus: Ints
    allows: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]
    weight: Floats


def typical(pods: list[Pod], models: set[str]) -> Typical:
    """The most frequent kinds up to 95 % of the trace."""
    counts = Counter((pod.cpu, pod.milli if pod.gpus else 0, pod.gpus, pod.models) for pod in pods)
    ranked = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
    kept, covered = [], 0
    for key, count in ranked:
        kept.append((key, count))
        covered += count
        if covered >= 0.95 * len(pods):
            break
    return Typical(
        cpu=np.array([key[0] for key, _ in kept]),
        milli=np.array([key[1] for key, _ in kept]),
        gpus=np.array([key[2] for key, _ in kept]),
        allows={
            model: np.array([not key[3] or model in key[3] for key, _ in kept]) for model in models
        },
        weight=np.array([count / covered for _, count in kept]),
    )


class FgdPlacer(TablePlacer):
    """Fragmentation gradient descent as published: quantised, ties by the order of nodes."""

    def __init__(self, fleet: Fleet, *, pods: list[Pod], rng: random.Random) -> None:
        self._typical = typical(pods, {machine.model for machine in fleet.machines})
        # Kinds that differ in memory alone score alike: one of them is computed.
        shapes: dict[Kind, int] = {}
        for kind, index in fleet.kinds.items():
            shapes.setdefault(replace(kind, memory=0), index)
        self._shape = np.array([shapes[replace(kind, memory=0)] for kind in fleet.kinds])
        self._is_shape = np.isin(np.arange(len(fleet.kinds)), list(shapes.values()))
        super().__init__(fleet, None, rng=rng)
        self._column = first_fit  # the table decides, not chance

    def fragment(
        self, node: int, cpu: Ints, gpu: Ints
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Expected fragment of states of one node: cpu [S] and gpu [S, 8]."""
        mix = self._typical
        idle = np.maximum(gpu, 0)
        fits = gpu[:, None, :] >= np.maximum(mix.milli, 1)[None, :, None]
        enough = (fits.sum(2) >= mix.gpus) & (cpu[:, None] >= mix.cpu) & (mix.gpus > 0)
        enough &= mix.allows[self.fleet.machines[node].model]
        small = (idle[:, None, :] * ~fits).sum(2)
        return np.asarray(np.where(enough, small, idle.sum(1)[:, None]) @ mix.weight)

    def scores(self, node: int) -> Ints:
        fleet = self.fleet
        result = np.full(len(fleet.kinds), NEVER, dtype=np.int64)
        kinds, states = self._what_if(node, self._is_shape)
        if not len(kinds):
            return result
        before = self.fragment(node, fleet.cpu[[node]], fleet.gpu[[node]])[0]
        after = self.fragment(node, fleet.cpu[node] - fleet.k_cpu[kinds], states)
        score = (100 / (1 + np.exp(-(before - after) / 1000))).astype(np.int64)
        np.maximum.at(result, kinds, score)
        return np.asarray(result[self._shape])

    def _what_if(self, node: int, among: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Ints, Ints]:
        """Every (kind, GPU state) that placing would lead to; a share pod tries every GPU.

        Among GPUs that are equally full the first stands for all.
        """
        fleet = self.fleet
        gpu = fleet.gpu[node]
        fits = fleet.feasible(node, memory=False) & among
        kinds, states = [], []
        shares = np.flatnonzero(fits & fleet.k_share)
        first = np.isin(np.arange(WIDEST), np.unique(gpu, return_index=True)[1])
        fitting = first[None, :] & (gpu[None, :] >= fleet.k_milli[shares][:, None])
        kind, index = np.nonzero(fitting)
        changed = np.repeat(gpu[None, :], len(kind), 0)
        changed[np.arange(len(kind)), index] -= fleet.k_milli[shares[kind]]
        kinds.append(shares[kind])
        states.append(changed)
        whole = np.flatnonzero(fits & ~fleet.k_share)
        rank = np.where(gpu == 1000, np.cumsum(gpu == 1000), WIDEST + 1)
        taken = rank[None, :] <= fleet.k_gpus[whole][:, None]
        kinds.append(whole)
        states.append(np.where(taken, 0, gpu[None, :]))
        return np.concatenate(kinds), np.concatenate(states)

    def choose(self, node: int, kind: int) -> tuple[int, ...]:
        fleet = self.fleet
        if not fleet.k_share[kind]:
            return tuple(int(i) for i in np.flatnonzero(fleet.gpu[node] == 1000))[
                : int(fleet.k_gpus[kind])
            ]
        _, states = self._what_if(node, np.arange(len(fleet.kinds)) == kind)
        cpu = np.repeat(fleet.cpu[node] - fleet.k_cpu[kind], len(states))
        before = self.fragment(node, fleet.cpu[[node]], fleet.gpu[[node]])[0]
        gain = before - self.fragment(node, cpu, states)
        best = int((100 / (1 + np.exp(-gain / 1000))).astype(np.int64).argmax())
        return (int(np.flatnonzero(states[best] != fleet.gpu[node])[0]),)


POLICIES: dict[str, Column | None] = {
    "dot-product": dot_product,
    "best-fit": best_fit,
    "gpu-best-fit": gpu_best_fit,
    "first-fit": first_fit,
    "random": None,
}


def baseline(
    policy: str, machines: list[Machine], pods: list[Pod], *, rng: random.Random
) -> TablePlacer:
    """A placer by name; raises KeyError for a name that is none."""
    fleet = Fleet(machines, pods)
    if policy == "fgd":
        return FgdPlacer(fleet, pods=pods, rng=rng)
    return TablePlacer(fleet, POLICIES[policy], rng=rng)
