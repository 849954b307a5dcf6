"""How far a wait is that may be long: a bar in a terminal, a line now and then in a log.

Imports nothing heavy, decides nothing, and says nothing of what is over soon.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

log = logging.getLogger(__name__)

SOON: Final = 1.0
"""Seconds in which a wait is over without a word."""
LOG_SECONDS: Final = 5.0
"""Between two lines of a log."""
BAR_SECONDS: Final = 0.1
WIDTH: Final = 30


class Progress:
    """`add` what was done of `total`, or say how far it is by `to`; the last ends the bar."""

    def __init__(
        self,
        what: str,
        *,
        total: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._out = out or sys.stderr
        self._bar = self._out.isatty()
        self._clock = clock
        self._begin = clock()
        self._next = self._begin + SOON
        self._done = 0
        self._shown = False

    def add(self, count: int) -> None:
        self.to(self._done + count)

    def to(self, done: int) -> None:
        self._done = done
        now, over = self._clock(), self._done >= self._total
        if now < self._next and not (over and self._shown):
            return
        self._next = now + (BAR_SECONDS if self._bar else LOG_SECONDS)
        self._shown = True
        share = min(1.0, self._done / self._total) if self._total else 1.0
        if not self._bar:
            log.info("%s: %.0f %%, %.0f s", self._what, 100 * share, now - self._begin)
            return
        filled = round(share * WIDTH)
        bar = "#" * filled + "." * (WIDTH - filled)
        self._out.write(f"\r{self._what} [{bar}] {100 * share:3.0f} %" + ("\n" if over else ""))
        self._out.flush()
