"""One run of the published experiment, and one under churn, for any policy.

Arrivals only: pods come one by one, and one that does not fit is dropped. Under churn they also
leave, and the load is held. Times are taken around each decision with its update.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Protocol

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
    """Shares of arrivals' GPU thousandths, in %."""

    rejected: float
    allocated: float
    arrivals: int


def churn(
    machines: list[Machine],
    pods: list[Pod],
    make: MakePlacer,
    *,
    seed: int,
    load: float,
    count: int = 10_000,
) -> Churn:
    """Exponential lifetimes with arrivals that ask for `load` times the GPUs in the long run.

    The warm-up lasts three mean lifetimes; then `count` arrivals are judged.
    """
    rng = random.Random(seed)
    capacity = capacity_of(machines)
    nodes = ordered_machines(machines, "seed", rng)
    placer = make(nodes, pods, rng)
    mean_demand = sum(pod.demand for pod in pods) / len(pods)
    rate = load * capacity / mean_demand  # arrivals per mean lifetime
    leaving: list[tuple[float, int, Pod, Placed]] = []
    now, judged, number = 0.0, 0, 0
    asked = refused = 0
    taken, level = 0, 0.0
    while judged < count:
        now += rng.expovariate(rate)
        number += 1
        while leaving and leaving[0][0] <= now:
            _, _, gone, (node, gpus) = heapq.heappop(leaving)
            placer.remove(gone, node, gpus)
            taken -= gone.demand
        pod = rng.choice(pods)
        life = rng.expovariate(1.0)
        placed = placer.place(pod)
        if placed is not None:
            heapq.heappush(leaving, (now + life, number, pod, placed))
            taken += pod.demand
        if now >= 3.0:
            judged += 1
            asked += pod.demand
            refused += 0 if placed is not None else pod.demand
            level += taken / capacity
    return Churn(100 * refused / asked, 100 * level / count, count)
