"""Whether the engine's thread gets on: what it waits for now, since when, and how long it may.

Told by the engine's thread, asked by others; each word is one assignment, so there is no lock.
Waiting for requests, and for the right of way on a shared GPU, is rest however long it takes.
"""

import math
import time
from collections.abc import Callable
from typing import Final

STEP: Final = "a step"
STORE: Final = "the store"
STALL_SECONDS: Final = 10.0
"""A guess: a thousand times what a step or a write takes, and about what a user would wait."""
LONG_SECONDS: Final = 120.0
"""For the first pass, which reads weights from a disk and builds kernels, and the most that a pass
may take by its pace. A guess."""
PACE: Final = 4.0
"""So many times what the last pass took per token: a token of a prompt costs no more than one that
is decoded, and contexts grow."""
REST: Final = ("", 0.0, math.inf)


class Pulse:
    """The engine's thread says what it is at; `stalled` says what it does not get done."""

    def __init__(
        self, *, limit: float = STALL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._now = REST
        self._moved = -math.inf
        self._pace: float | None = None

    def works(self, what: str) -> None:
        """A piece of work begins that is short on a sound machine."""
        self._now = (what, self._clock(), self._limit)

    def computes(self, *, tokens: int) -> None:
        """A pass over so many tokens begins."""
        wanted = math.inf if self._pace is None else PACE * self._pace * tokens
        self._now = (STEP, self._clock(), max(self._limit, min(wanted, LONG_SECONDS)))

    def computed(self, *, tokens: int, seconds: float) -> None:
        """The pass is over, and was not interrupted."""
        self._pace = seconds / tokens

    def moves(self) -> None:
        """A part of what is waited for is done; from any thread."""
        self._moved = self._clock()

    def rests(self) -> None:
        """Nothing is waited for that has to come soon."""
        self._now = REST

    @property
    def at(self) -> str:
        """What it is at; empty while it rests."""
        return self._now[0]

    @property
    def stalled(self) -> str:
        """What it has waited for too long; empty if it gets on."""
        what, since, limit = self._now
        return what if self._clock() - max(since, self._moved) > limit else ""
