"""One run of the published experiment, and one under churn, for any policy.

Arrivals only: pods come one by one, and one that does not fit is dropped. Under churn they also
leave, and the load is held. Times are taken around each decision with its update.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Protocol, runtime_checkable

from openb import Machine, Pod, arrivals, capacity_of

Placed = tuple[int, tuple[int, ...]]
WHOLE = 1000
"""Thousandths of a GPU."""


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
    """Shares of arrivals' GPU thousandths, in %; `moves` and `let_in` per 100 arrivals.

    `by_width` is what part of `rejected` falls to pods of so many GPUs (0: a part of one), and
    `moved` the thousandths of GPUs that had to pause per 100 thousandths that asked.
    """

    rejected: float
    allocated: float
    arrivals: int
    moves: float
    let_in: float
    moved: float
    by_width: dict[int, float]


@runtime_checkable
class Rescuer(Protocol):
    """A placer that can move others to let a pod in."""

    def rescue(
        self, pod: Pod, placed: dict[int, tuple[Pod, Placed]], limit: int
    ) -> tuple[Placed, dict[int, Placed]] | None: ...


CREDIT = 100.0
"""Moves that can be saved up at most."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Moves that may be made: so many per 100 arrivals, each to let in `least` thousandths."""

    per_100: float = 0.0
    least: int = 500


@dataclass(slots=True)
class Crowd:
    """Pods that are in, and the moves that may still be made."""

    placer: Placer
    allowed: Allowance
    inside: dict[int, tuple[Pod, Placed]] = field(default_factory=dict)
    leaving: list[tuple[float, int]] = field(default_factory=list)
    credit: float = 0.0
    moves: int = 0
    moved: int = 0
    let_in: int = 0

    def begin(self) -> None:
        """Count from here on; credit that was saved before does not count."""
        self.moves = self.moved = self.let_in = 0
        self.credit = min(self.credit, self.allowed.per_100)

    def leave(self, now: float) -> None:
        while self.leaving and self.leaving[0][0] <= now:
            pod, (node, gpus) = self.inside.pop(heapq.heappop(self.leaving)[1])
            self.placer.remove(pod, node, gpus)

    def come(self, number: int, pod: Pod, until: float) -> bool:
        """Place a pod, by moves if need be and allowed."""
        self.credit = min(self.credit + self.allowed.per_100 / 100, CREDIT)
        placed = self.placer.place(pod) or self._rescue(pod)
        if placed is None:
            return False
        self.inside[number] = (pod, placed)
        heapq.heappush(self.leaving, (until, number))
        return True

    def _rescue(self, pod: Pod) -> Placed | None:
        limit = min(int(self.credit), pod.demand // self.allowed.least)
        if limit < 1 or not isinstance(self.placer, Rescuer):
            return None
        found = self.placer.rescue(pod, self.inside, limit)
        if found is None:
            return None
        placed, homes = found
        for number, home in homes.items():
            self.inside[number] = (self.inside[number][0], home)
        self.credit -= len(homes)
        self.moves += len(homes)
        self.moved += sum(self.inside[number][0].demand for number in homes)
        self.let_in += 1
        return placed


def churn(
    machines: list[Machine],
    pods: list[Pod],
    make: MakePlacer,
    *,
    seed: int,
    load: float,
    count: int = 10_000,
    allowed: Allowance | None = None,
) -> Churn:
    """Exponential lifetimes with arrivals that ask for `load` times the GPUs in the long run.

    The warm-up lasts three mean lifetimes; then `count` arrivals are judged.
    """
    rng = random.Random(seed)
    capacity = capacity_of(machines)
    nodes = ordered_machines(machines, "seed", rng)
    crowd = Crowd(make(nodes, pods, rng), allowed or Allowance())
    fates = random.Random(seed)
    mean_demand = sum(pod.demand for pod in pods) / len(pods)
    rate = load * capacity / mean_demand  # arrivals per mean lifetime
    now, number = 0.0, 0
    tally = Tally()
    while tally.judged < count:
        now += fates.expovariate(rate)
        number += 1
        crowd.leave(now)
        pod, life = fates.choice(pods), fates.expovariate(1.0)
        entered = crowd.come(number, pod, now + life)
        if now < WARM:
            crowd.begin()
            continue
        tally.judge(pod, entered=entered)
        if tally.judged % 100 == 0:
            tally.level += sum(one.demand for one, _ in crowd.inside.values()) / capacity
    return Churn(
        rejected=100 * sum(tally.refused.values()) / tally.asked,
        allocated=100 * tally.level / (count // 100),
        arrivals=count,
        moves=100 * crowd.moves / count,
        let_in=100 * crowd.let_in / count,
        moved=100 * crowd.moved / tally.asked,
        by_width={w: 100 * n / tally.asked for w, n in sorted(tally.refused.items())},
    )


WARM = 3.0
"""Mean lifetimes before arrivals are judged."""


@dataclass(slots=True)
class Tally:
    """What was asked and refused after the warm-up, in thousandths of a GPU."""

    judged: int = 0
    asked: int = 0
    level: float = 0.0
    refused: Counter[int] = field(default_factory=Counter)

    def judge(self, pod: Pod, *, entered: bool) -> None:
        self.judged += 1
        self.asked += pod.demand
        if not entered:
            self.refused[0 if pod.milli < WHOLE else pod.gpus] += pod.demand
