"""The mix of requests that the policy packs for: which kinds there are and how many of each, and
whether they come and go.

`follow` lets a mix trail what sessions exist with hysteresis: a small change keeps the old
object, so that scores need not be rebuilt for every arrival. The mix is part of the State: same
state, same plan.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from sojourn_operator.plan.state import Mix, Request

NOTABLE: Final = 0.25
"""Half of the sum of changed shares that counts as another mix: a guess; prices move slowly."""
LATELY: Final = 64
"""Arrivals and departures after which older ones count half: a guess, few against a cluster."""
MANY, FEW = 0.5, 0.25
"""Departures per arrival from which sessions pass through, and below which they only come."""


def mix_of(requests: Iterable[Request]) -> Mix:
    """The mix of these requests, in an order that depends on nothing but them."""
    counts = Counter(requests)
    return Mix(tuple(sorted(counts.items(), key=lambda item: (-item[1], repr(item[0])))))


@dataclass(slots=True)
class Flow:
    """Whether sessions that hold a place come and go, or only come; the shell keeps one.

    `passing` follows what was counted lately, with hysteresis.
    """

    passing: bool = False
    _came: float = 0.0
    _went: float = 0.0
    _inside: AbstractSet[str] = field(default_factory=frozenset)

    def look(self, inside: AbstractSet[str]) -> bool:
        """Count who came and who went since the last look; whether they pass through."""
        self.count(came=len(inside - self._inside), went=len(self._inside - inside))
        self._inside = inside
        return self.passing

    def count(self, *, came: int = 0, went: int = 0) -> None:
        """Add what was seen."""
        self._came, self._went = self._came + came, self._went + went
        while self._came + self._went > LATELY:
            self._came, self._went = self._came / 2, self._went / 2
            self.passing = self._went >= self._came * (FEW if self.passing else MANY)


def follow(before: Mix, requests: Iterable[Request], *, passing: bool = False) -> Mix:
    """`before` itself unless the requests have moved notably away from it, or begin or cease to
    pass through.
    """
    kept = _follow(before, requests)
    return kept if kept.passing is passing else replace(kept, passing=passing)


def _follow(before: Mix, requests: Iterable[Request]) -> Mix:
    now = Counter(requests)
    total = sum(now.values())
    if not total:
        return before
    if before.counts and total <= 2 * before.total:
        old = dict(before.counts)
        drift = sum(
            abs(now.get(kind, 0) / total - old.get(kind, 0) / before.total)
            for kind in now.keys() | old.keys()
        )
        if drift / 2 < NOTABLE:
            return before
    return mix_of(now.elements())
