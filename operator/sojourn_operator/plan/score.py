"""Which node and which GPUs suit a request best: the packing policy, as whole numbers.

A score compares nodes for one request only; higher is better. It adds up what placing would
cost, in thousandths of a GPU: worth lost in remainders, a node's CPU and GPU out of balance,
free GPUs split up, a fresh node touched, a scarce model used. It is coarse on purpose: nodes
that differ little tie, and ties follow one fixed order, which keeps sessions together. Nothing
here knows other nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor
from typing import Final

from sojourn_operator.plan.need import GpuNeed, Need
from sojourn_operator.plan.prices import GPU
from sojourn_operator.plan.room import Choice, Room
from sojourn_operator.plan.state import Gpu, Mix, Node
from sojourn_operator.plan.tuning import ANY_MIX, WIDEST, Tuning, tune

EVEN: Final = 500
"""The decode fraction at which GPUs of different models are weighed against one another."""
NUDGE: Final = 1e-6
"""Costs at an edge of a step belong to the better side, whatever rounding did to them."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each cost counts; found by simulation of mixes, see docs/placement.md."""

    worth: float = 1.0
    square: float = 0.0
    """The part of the worth that counts remainders by their square and not by the mix's prices, so
    that the fullest GPU is filled first and others drain.
    """
    shortage: float = 0.447
    """Per thousandth of free GPU that the node's free CPU cannot serve."""
    surplus: float = 0.111
    """Per thousandth of a GPU that the node's spare CPU could have served."""
    shortage_from: float = 0.45
    """CPU per GPU, in multiples of the mix's, below which CPU is short."""
    surplus_from: float = 1.496
    split: float = 0.0293
    """Per thousandth that those who ask for several GPUs of a node lose by a split."""
    fresh: float = 9.76
    """For a node that is wholly free until now."""
    opened: float = 50.7
    """For a GPU that is wholly free until now and will not be wholly taken."""
    scarce: float = 0.391
    scarce_power: float = 0.807
    """Of a model's demand over supply, by those who accept few models."""
    roomy: float = 0.0
    """Per free GPU of the node, so that the fullest node is filled first and others drain."""
    step: float = 50.0
    """Costs that differ by less may tie."""


PASSING: Final = Weights(worth=2.0, square=0.5, opened=0.0, fresh=400.0, roomy=100.0, step=10.0)
"""Where sessions come and go: what is kept empty now serves those who need it whole later."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node as the policy sees it: one table of worth and one price per GPU."""

    node: Node
    worth: tuple[tuple[float, ...], ...]
    price: tuple[float, ...]


class Policy:
    """Scores with weights and a tuning; `retune` when the mix or the GPUs have changed.

    There are two sets of weights, for sessions that only come and for those that come and go.
    """

    def __init__(self, weights: Weights | None = None, passing: Weights | None = None) -> None:
        self.weights = self._coming = weights or Weights()
        self._passing = passing or PASSING
        self.tuning = Tuning()
        self._sites: dict[str, Site] = {}
        self._tables: dict[tuple[str, int, float], tuple[float, ...]] = {}

    def retune(self, mix: Mix, nodes: Iterable[Node]) -> None:
        """Pack for this mix from now on."""
        self.weights = self._passing if mix.passing else self._coming
        self.tuning = tune(mix, nodes)
        self._sites.clear()
        self._tables.clear()

    def score(self, room: Room, need: Need) -> int | None:
        """How well the node serves the need, None if it cannot."""
        cpu = room.cpu - need.cpu_milli
        if cpu < 0 or room.memory < need.memory_bytes or room.pods < 1:
            return None
        choice = self._choice(room, need.gpu)
        if choice is None:
            return None
        if need.gpu.spread:
            return room.free
        cost, taken, _ = choice
        idle = room.idle_cost
        if idle is None:
            idle = room.idle_cost = self.imbalance(room.cpu, room.free)
        cost += self.imbalance(cpu, room.free - taken) - idle
        return floor(NUDGE - cost / self.weights.step)

    def choose(self, room: Room, need: Need) -> tuple[int, ...] | None:
        """The GPUs (indices) that the need would take, None if it does not fit."""
        if room.cpu < need.cpu_milli or room.memory < need.memory_bytes or room.pods < 1:
            return None
        choice = self._choice(room, need.gpu)
        return None if choice is None else choice[2]

    def _choice(self, room: Room, need: GpuNeed) -> Choice | None:
        memo = room.memo
        if need in memo:
            return memo[need]
        if need.shards == 1:
            gpus = self._one(room, need)
        else:
            gpus = linked(room, need) if need.shards else ()
        choice = memo[need] = None if gpus is None else self._cost(room, need, gpus)
        return choice

    def _cost(self, room: Room, need: GpuNeed, gpus: tuple[int, ...]) -> Choice:
        """What it costs to take these GPUs, the node's balance apart."""
        if not gpus:
            return 0.0, 0, gpus
        weights, site, left = self.weights, self._site(room.node), room.left
        cost, taken, touched = -weights.worth * need.reference, 0, 0
        for index in gpus:
            size, before = need.sizes[index], left[index]
            worth = site.worth[index]
            cost += weights.worth * (worth[before] - worth[before - size])
            cost += site.price[index] * size
            taken += size
            if before == GPU:
                touched += 1
                if size < GPU:
                    cost += weights.opened
        cost += weights.roomy * room.free / GPU
        if room.whole == len(left):
            cost += weights.fresh
        if touched:
            split, whole = self.tuning.split, min(room.whole, WIDEST)
            cost += weights.split * (split[max(whole - touched, 0)] - split[whole])
        return cost, taken, gpus

    def imbalance(self, cpu: float, gpu: int) -> float:
        """What a node loses that has this much of both left: some of one serves nobody."""
        rate, weights = self.tuning.cpu, self.weights
        if not rate:
            return 0.0
        served = cpu / rate
        short = gpu * weights.shortage_from - served
        if short > 0:
            return weights.shortage * short
        spare = served - gpu * weights.surplus_from
        return weights.surplus * spare if spare > 0 else 0.0

    def _one(self, room: Room, need: GpuNeed) -> tuple[int, ...] | None:
        """The GPU whose remainder loses least worth, then the tightest."""
        slices, free, free_slices, left = need.slices, room.parts, room.slices, room.left
        worth = self._site(room.node).worth
        sizes, opened = need.sizes, self.weights.opened / max(self.weights.worth, 0.001)
        best = -1
        least, tightest = 0.0, 0
        for index, parts in enumerate(need.parts):
            if not 0 <= parts <= free[index] or slices > free_slices[index]:
                continue
            before = left[index]
            size = sizes[index]
            lost = worth[index][before] - worth[index][before - size]
            if before == GPU > size:
                lost += opened
            if need.spread:
                lost = -before
            if best < 0 or lost < least or (lost == least and before < tightest):
                best, least, tightest = index, lost, before
        return None if best < 0 else (best,)

    def _site(self, node: Node) -> Site:
        site = self._sites.get(node.name)
        if site is None or site.node is not node:
            tuning, weights = self.tuning, self.weights
            site = self._sites[node.name] = Site(
                node=node,
                worth=tuple(self._worth(gpu) for gpu in node.gpus),
                price=tuple(
                    scale(gpu) * weights.scarce * price**weights.scarce_power if price > 0 else 0.0
                    for gpu in node.gpus
                    for price in (tuning.price.get(gpu.model, 0.0),)
                ),
            )
        return site

    def _worth(self, gpu: Gpu) -> tuple[float, ...]:
        """The worth of its remainders in thousandths of an A100; one table for equal GPUs."""
        key = (gpu.model, gpu.slices, scale(gpu))
        table = self._tables.get(key)
        if table is None:
            plain = self.tuning.worth.get((gpu.model, gpu.slices), ANY_MIX)
            square = self.weights.square
            table = self._tables[key] = tuple(
                key[2] * ((1 - square) * priced + square * squared)
                for priced, squared in zip(plain, ANY_MIX, strict=True)
            )
        return table


def scale(gpu: Gpu) -> float:
    """What a GPU is worth in A100s, so that a remainder of an H100 outweighs that of an A100."""
    return 1.0 if gpu.speed is None else gpu.speed.capacity(EVEN) / GPU


def linked(room: Room, need: GpuNeed) -> tuple[int, ...] | None:
    """The fullest GPUs of one link group, from the group that keeps least."""
    best: tuple[int, tuple[int, ...]] | None = None
    slices, shards, left = need.slices, need.shards, room.left
    for group in room.groups:
        if len(group) < shards:
            break
        members = [
            (left[index], index)
            for index in group
            if 0 <= need.parts[index] <= room.parts[index] and slices <= room.slices[index]
        ]
        if len(members) < shards:
            continue
        members.sort()
        kept = sum(left[index] for index in group)
        if best is None or kept < best[0]:
            best = (kept, tuple(index for _, index in members[:shards]))
    return None if best is None else best[1]
