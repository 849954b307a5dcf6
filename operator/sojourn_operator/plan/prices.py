"""What each remainder of a GPU is worth, from the mix of sizes that sessions ask for.

The cutting-stock program (fewest GPUs that hold a given mix) has a price for every size as its
dual; the worth of a remainder is the dearest load that fits into it. Solved by column generation
with a dense simplex, in plain Python: tens of sizes, a fraction of a second, and not on the path
of a decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Final

GPU: Final = 1000
"""Sizes are thousandths of a GPU."""
TOLERANCE: Final = 1e-9
STEPS: Final = 5000
"""More than any mix needed; the prices of an unfinished program are still usable ones."""


@dataclass(frozen=True, slots=True)
class Prices:
    """`gpus` is the fewest (fractional) GPUs for the mix; `of[size]` sums up to it over the mix."""

    gpus: float
    of: Mapping[int, float]


def prices(demand: Mapping[int, float]) -> Prices:
    """Dual prices of the mix: how many sessions ask for each size (1 to 1000)."""
    sizes = sorted(size for size, count in demand.items() if count > 0)
    if not sizes:
        return Prices(gpus=0.0, of={})
    program = _Program(sizes, [demand[size] for size in sizes])
    for _ in range(STEPS):
        duals = program.duals()
        worth, pattern = best_load(dict(zip(sizes, duals, strict=True)), sizes)
        if worth <= 1 + TOLERANCE or not program.enter(pattern):
            break
    duals = program.duals()
    return Prices(gpus=sum(program.level), of=dict(zip(sizes, duals, strict=True)))


def worths(price_of: Mapping[int, float]) -> list[float]:
    """The worth of every remainder 0 to 1000: the dearest load that fits."""
    step, table, _ = _knapsack(price_of, sorted(price_of))
    return [table[left // step] for left in range(GPU + 1)]


def best_load(price_of: Mapping[int, float], sizes: list[int]) -> tuple[float, list[int]]:
    """The dearest load of one whole GPU: its worth, and how many of each size."""
    step, table, choice = _knapsack(price_of, sizes)
    counts = [0] * len(sizes)
    left = GPU // step
    while left > 0:
        pick = choice[left]
        if pick < 0:
            left -= 1
            continue
        counts[pick] += 1
        left -= sizes[pick] // step
    return table[GPU // step], counts


def _knapsack(
    price_of: Mapping[int, float], sizes: list[int]
) -> tuple[int, list[float], list[int]]:
    step = gcd(GPU, *sizes)
    capacity = GPU // step
    table = [0.0] * (capacity + 1)
    choice = [-1] * (capacity + 1)
    items = [(index, size // step, price_of[size]) for index, size in enumerate(sizes)]
    for left in range(1, capacity + 1):
        best, pick = table[left - 1], -1
        for index, width, price in items:
            if width > left:
                break
            worth = table[left - width] + price
            if worth > best + TOLERANCE / 10:
                best, pick = worth, index
        table[left], choice[left] = best, pick
    return step, table, choice


class _Program:
    """The master program: `level[i]` GPUs run the i-th basic pattern; all patterns cost one GPU."""

    def __init__(self, sizes: list[int], demand: list[float]) -> None:
        count = len(sizes)
        copies = [GPU // size for size in sizes]
        self._inverse = [
            [1.0 / copies[i] if i == j else 0.0 for j in range(count)] for i in range(count)
        ]
        self.level = [demand[i] / copies[i] for i in range(count)]

    def duals(self) -> list[float]:
        """The price of each size: one times the basis inverse."""
        return [sum(column) for column in zip(*self._inverse, strict=True)]

    def enter(self, pattern: list[int]) -> bool:
        """Bring a pattern into the basis; False if nothing limits it, which no real mix meets."""
        used = [(j, float(n)) for j, n in enumerate(pattern) if n]
        change = [sum(row[j] * n for j, n in used) for row in self._inverse]
        ratios = [
            (self.level[i] / change[i], i) for i in range(len(change)) if change[i] > TOLERANCE
        ]
        if not ratios:
            return False
        step, leave = min(ratios)
        pivot = [value / change[leave] for value in self._inverse[leave]]
        for i, factor in enumerate(change):
            if i == leave:
                self._inverse[i] = pivot
                self.level[i] = step
            elif factor:
                row = self._inverse[i]
                self._inverse[i] = [value - factor * p for value, p in zip(row, pivot, strict=True)]
                self.level[i] = max(self.level[i] - factor * step, 0.0)
        return True
