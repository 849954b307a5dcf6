"""One run of the published experiment, and one under churn, for any policy.

Arrivals only: pods come one by one, and one that does not fit is dropped. Under churn they also
leave, and the load is held. Times are taken around each decision with its update.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Protocol, runtime_checkable

from openb import Machine, Pod, arrivals, capacity_of

Placed = tuple[int, tuple[int, ...]]


class Placer(Protocol):
    """What a policy offers: a machine's position and its GPUs, or None."""

    def place(self, pod: Pod) -> Placed | None: ...
    def remove(self, pod: Pod, node: int, gpus: tuple[int, ...]) -> None: ...


MakePlacer = Callable[[list[Machine], list[Pod], random.Random], Placer]


@dataclass(slots=True)
class Result:
    """`allocation[x]` is the mean allocation (%) while arrivals asked for x % of the GPUs."""

    allocation: dict[int, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    log: list[tuple[int, str, bool, str, str]] = field(default_factory=list)
    setup: float = 0.0


def quantile(seconds: list[float], part: float) -> float:
    """Milliseconds below which that part of the times lies."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def ordered_machines(machines: list[Machine], order: str, rng: random.Random) -> list[Machine]:
    """The fixed order of machines: by seed, or one that a naming habit might give."""
    match order:
        case "seed":
            shuffled = machines[:]
            rng.shuffle(shuffled)
            return shuffled
        case "name":
            return sorted(machines, key=lambda one: one.name)
        case "reverse":
            return sorted(machines, key=lambda one: one.name, reverse=True)
        case "large-first":
            return sorted(machines, key=lambda one: (-one.gpus, one.name))
        case _:
            raise ValueError(f"order {order}: seed, name, reverse or large-first")


def fill(
    machines: list[Machine],
    pods: list[Pod],
    make: MakePlacer,
    *,
    seed: int,
    order: str = "seed",
    until: float = 1.3,
) -> Result:
    """Arrivals up to `until` times the cluster."""
    rng = random.Random(seed)
    capacity = capacity_of(machines)
    coming = arrivals(pods, capacity=capacity, rng=rng)
    nodes = ordered_machines(machines, order, rng)
    result = Result()
    begin = perf_counter()
    placer = make(nodes, pods, rng)
    result.setup = perf_counter() - begin
    arrived = taken = 0
    points: dict[int, list[float]] = {}
    for step, pod in enumerate(coming):
        arrived += pod.demand
        if arrived / capacity >= until + 0.005:
            break
        begin, busy = perf_counter(), thread_time()
        placed = placer.place(pod)
        result.cpu_seconds.append(thread_time() - busy)
        result.seconds.append(perf_counter() - begin)
        if placed is not None:
            taken += pod.demand
        where = ("", "") if placed is None else (nodes[placed[0]].name, _join(placed[1]))
        result.log.append((step, pod.name, placed is not None, *where))
        points.setdefault(round(100 * arrived / capacity), []).append(taken / capacity)
    result.allocation = {x: 100 * sum(ys) / len(ys) for x, ys in points.items()}
    return result


def _join(gpus: tuple[int, ...]) -> str:
    return ";".join(map(str, gpus))


@dataclass(slots=True)
class Churn:
    """Shares of arrivals' GPU thousandths, in %; `moves` per 100 arrivals."""

    rejected: float
    allocated: float
    arrivals: int
    moves: float


@runtime_checkable
class Rescuer(Protocol):
    """A placer that can move others to let a pod in."""

    def rescue(
        self, pod: Pod, placed: dict[int, tuple[Pod, Placed]], limit: int
    ) -> tuple[Placed, dict[int, Placed]] | None: ...


MOST_MOVES = 3
"""Moves for one refused pod at most."""


@dataclass(slots=True)
class Crowd:
    """Pods that are in, and the moves that may still be made."""

    placer: Placer
    moves_per_100: float
    inside: dict[int, tuple[Pod, Placed]] = field(default_factory=dict)
    leaving: list[tuple[float, int]] = field(default_factory=list)
    credit: float = 0.0
    moved: int = 0

    def leave(self, now: float) -> None:
        while self.leaving and self.leaving[0][0] <= now:
            pod, (node, gpus) = self.inside.pop(heapq.heappop(self.leaving)[1])
            self.placer.remove(pod, node, gpus)

    def come(self, number: int, pod: Pod, until: float) -> bool:
        """Place a pod, by moves if need be and allowed."""
        self.credit = min(self.credit + self.moves_per_100 / 100, 100.0)
        placed = self.placer.place(pod) or self._rescue(pod)
        if placed is None:
            return False
        self.inside[number] = (pod, placed)
        heapq.heappush(self.leaving, (until, number))
        return True

    def _rescue(self, pod: Pod) -> Placed | None:
        limit = min(int(self.credit), MOST_MOVES)
        if limit < 1 or not isinstance(self.placer, Rescuer):
            return None
        found = self.placer.rescue(pod, self.inside, limit)
        if found is None:
            return None
        placed, homes = found
        for number, home in homes.items():
            self.inside[number] = (self.inside[number][0], home)
        self.credit -= len(homes)
        self.moved += len(homes)
        return placed


def churn(
    machines: list[Machine],
    pods: list[Pod],
    make: MakePlacer,
    *,
    seed: int,
    load: float,
    count: int = 10_000,
    moves_per_100: float = 0.0,
) -> Churn:
    """Exponential lifetimes with arrivals that ask for `load` times the GPUs in the long run.

    The warm-up lasts three mean lifetimes; then `count` arrivals are judged.
    """
    rng = random.Random(seed)
    capacity = capacity_of(machines)
    nodes = ordered_machines(machines, "seed", rng)
    crowd = Crowd(make(nodes, pods, rng), moves_per_100)
    fates = random.Random(seed)
    mean_demand = sum(pod.demand for pod in pods) / len(pods)
    rate = load * capacity / mean_demand  # arrivals per mean lifetime
    now, judged, number = 0.0, 0, 0
    asked = refused = before = 0
    level = 0.0
    while judged < count:
        now += fates.expovariate(rate)
        number += 1
        crowd.leave(now)
        pod, life = fates.choice(pods), fates.expovariate(1.0)
        entered = crowd.come(number, pod, now + life)
        if now < 3.0:
            before = crowd.moved
            continue
        judged += 1
        asked += pod.demand
        refused += 0 if entered else pod.demand
        if judged % 100 == 0:
            level += sum(one.demand for one, _ in crowd.inside.values()) / capacity
    return Churn(
        rejected=100 * refused / asked,
        allocated=100 * level / (count // 100),
        arrivals=count,
        moves=100 * (crowd.moved - before) / count,
    )
