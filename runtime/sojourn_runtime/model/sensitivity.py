"""Chooses a kind for each linear from how much each one alone changes the distributions.

Pure: `calibrate` measures. The rule is that small divergences of independent roundings add up,
which holds well enough to choose by; plans are measured as a whole afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sojourn_runtime.model.quantization import Kind

COST: Final = {Kind.W8A8: 1.0, Kind.W8A16: 1.5, Kind.BF16: 2.0}
"""Time per weight, roughly: W8A16 reads as little as W8A8 and computes as much as bf16."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The divergence when this linear alone is quantised; `weights` counts its elements."""

    name: str
    weights: int
    w8a16: float
    w8a8: float

    def divergence(self, kind: Kind) -> float:
        return {Kind.W8A8: self.w8a8, Kind.W8A16: self.w8a16, Kind.BF16: 0.0}[kind]


def above_noise(measured: Sequence[Sensitivity]) -> list[Sensitivity]:
    """Less what any change at all gives: it tips roundings to bf16 everywhere behind it, which is
    the same divergence for one linear as for all, and so does not add up.
    """
    noise = min(min(linear.w8a16, linear.w8a8) for linear in measured)
    return [
        replace(linear, w8a16=linear.w8a16 - noise, w8a8=linear.w8a8 - noise) for linear in measured
    ]


def choose(measured: Sequence[Sensitivity], *, allowed: float) -> dict[str, Kind]:
    """All W8A8, but for what must be finer so that the divergences add up to `allowed` at most.

    Takes the change that saves most divergence for its cost, one after the other.
    """
    by_name = {linear.name: linear for linear in measured}
    kinds = dict.fromkeys(by_name, Kind.W8A8)
    total = sum(linear.divergence(Kind.W8A8) for linear in measured)
    while total > allowed:
        worth = [
            (value, name, kind) for name in kinds for value, kind in _finer(by_name[name], kinds)
        ]
        if not worth:
            break
        _, name, kind = max(worth)
        total -= by_name[name].divergence(kinds[name]) - by_name[name].divergence(kind)
        kinds[name] = kind
    return kinds


def _finer(linear: Sensitivity, kinds: dict[str, Kind]) -> Iterator[tuple[float, Kind]]:
    """What each finer kind saves of divergence for its cost."""
    now = kinds[linear.name]
    for kind in (Kind.W8A16, Kind.BF16):
        saved = linear.divergence(now) - linear.divergence(kind)
        if COST[kind] > COST[now] and saved > 0:
            yield saved / ((COST[kind] - COST[now]) * linear.weights), kind
