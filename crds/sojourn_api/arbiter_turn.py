"""Turns among grants of one tier on a shared GPU, in proportion to their shares.

Deficit round robin without a referee: each page shows what its owner has had, in virtual time
(computing time divided by share), and who has had the least goes next, for one quantum. `next_turn`
is the rule and pure; `Turns` reads the pages for it. Higher tiers are `arbiter_watch`'s.

Two that begin in the same instant may overlap for one quantum; the accounts even it out. Among
equals a dishonest owner can gain time, but cannot starve others (`STARVED_NS`).
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sojourn_api.arbiter import (
    I_GENERATION,
    I_STALE_NS,
    W_CREDIT,
    W_TURN,
    W_WANTS,
    ArbiterError,
    has_work,
    open_page,
    read_index,
    read_open,
    read_tier,
    slots,
)
from sojourn_api.arbiter_page import Page

REFERENCE_SHARE: Final = 1000
TURN_LIMIT_NS: Final = 1_000_000_000
"""A turn held for longer does not count: its owner computes one very long step, or cheats."""
STARVED_NS: Final = 2_000_000_000
"""Who has waited for so long goes, whoever else does."""


@dataclass(frozen=True, slots=True)
class Equal:
    """A live owner of the same tier that has work. `credit`: its virtual time."""

    slot: str
    credit: int
    turn: bool


def next_turn(own: Equal, others: Iterable[Equal]) -> bool:
    """Whether `own` goes now: nobody holds the turn, and nobody has had less.

    Equal accounts are ordered by slot, so that all agree.
    """
    others = list(others)
    if any(other.turn for other in others):
        return False
    order = (own.credit, own.slot)
    return all((other.credit, other.slot) > order for other in others)


def joining_credit(own: int, others: Iterable[Equal]) -> int:
    """The account to begin with after idling: no more may be claimed than others now have had."""
    return max(own, min((other.credit for other in others), default=0))


@dataclass(frozen=True, slots=True)
class _Peer:
    slot: str
    fd: int


class Turns:
    """The owner's side. `want` when work comes or ends; `mine` before each step; `spent` after.

    `mine` is cheap within a quantum; outside of it an idle equal costs 1 us, one with work a few.
    """

    def __init__(
        self,
        grants: Path,
        page: Page,
        *,
        own_slot: str,
        turn_limit_ns: int = TURN_LIMIT_NS,
        starved_ns: int = STARVED_NS,
    ) -> None:
        self._grants = grants
        self._turn_limit_ns = turn_limit_ns
        self._starved_ns = starved_ns
        self._words = page.words
        self._credit = page.words[W_CREDIT]
        self._slot = own_slot
        self._index = read_index(grants)
        self._generation = 0
        self._peers: list[_Peer] = []
        self._share = REFERENCE_SHARE
        self._quantum_ns = 0
        self._left_ns = 0
        self._waiting_since = 0

    def want(self, wants: bool) -> None:  # noqa: FBT001 - reads as a sentence
        """There is work now, or there is none any more."""
        words = self._words
        if not wants:
            words[W_WANTS] = words[W_TURN] = 0
        elif not words[W_WANTS]:
            self._credit = joining_credit(self._credit, self._equals())
            words[W_CREDIT] = self._credit  # before the next line: others order by it
            words[W_WANTS] = 1
            self._waiting_since = time.monotonic_ns()

    def mine(self) -> bool:
        """Whether to compute the next step; if not, ask again in a millisecond."""
        words = self._words
        now = time.monotonic_ns()
        since = words[W_TURN]
        if since and self._left_ns > 0 and now - since < self._turn_limit_ns:
            return True
        words[W_TURN] = 0
        starved = not since and now - self._waiting_since > self._starved_ns
        if not starved and not self._next():
            if since:
                self._waiting_since = now
            return False
        words[W_TURN] = now
        self._left_ns = self._quantum_ns
        return True

    @property
    def left_ns(self) -> int:
        """What is left of the turn's quantum; 0 where it is not this pod's turn."""
        return max(0, self._left_ns) if self._words[W_TURN] else 0

    def _next(self) -> bool:
        equals = self._equals()
        if not equals:
            return True
        own = Equal(slot=self._slot, credit=self._credit, turn=False)
        return next_turn(own, equals)

    def spent(self, computed_ns: int) -> None:
        """Account a step."""
        self._left_ns -= computed_ns
        self._credit += computed_ns * REFERENCE_SHARE // self._share
        self._words[W_CREDIT] = self._credit

    def _equals(self) -> list[Equal]:
        if self._index[I_GENERATION] != self._generation:
            self._rescan()
        busy = [peer for peer in self._peers if has_work(peer.fd)]
        if not busy:
            return []
        now, stale = time.monotonic_ns(), self._index[I_STALE_NS]
        found = []
        for peer in busy:
            try:
                page = read_open(peer.fd, path=self._grants / peer.slot)
            except ArbiterError:
                continue
            if page.wants and page.locked and abs(now - page.beat_ns) <= stale:
                turn = (
                    bool(page.turn_since_ns) and abs(now - page.turn_since_ns) < self._turn_limit_ns
                )
                found.append(Equal(slot=peer.slot, credit=page.credit, turn=turn))
        return found

    def _rescan(self) -> None:
        """Who is of my tier, after the plugin changed something."""
        generation = self._index[I_GENERATION]
        self.close()
        own = read_tier(self._grants, self._slot)
        self._share = max(1, own.share) if own.share else REFERENCE_SHARE
        self._quantum_ns = own.time_slice_ns * self._share // REFERENCE_SHARE
        for slot in slots(self._grants):
            if slot == self._slot:
                continue
            try:
                if read_tier(self._grants, slot).priority == own.priority:
                    self._peers.append(_Peer(slot, open_page(self._grants, slot)))
            except ArbiterError:
                continue  # a grant that goes away
        self._generation = generation

    def close(self) -> None:
        """Let go of the others' pages."""
        for peer in self._peers:
            os.close(peer.fd)
        self._peers = []
