"""When what went wrong may be tried again: each thing by itself, and twice as late each time.

A session that cannot be written must not be tried in every pass of a busy cluster, and an API
server that has too much to do must not be asked by anyone. Nothing is tried here.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

FIRST_SECONDS: Final = 0.25
MOST_SECONDS: Final = 30.0
CONFLICT_SECONDS: Final = 0.5
"""At most, after a conflict: it is over once the watch has told what somebody else wrote."""

API: Final = "the API server"
"""What fails when it says that it has too much to do, or does not answer at all."""


class Patience:
    """Remembers failures by key; for many threads. Seconds are of a clock that never jumps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waits: dict[str, tuple[float, float]] = {}
        """How long each key waits, and until when."""
        self._lock = threading.Lock()

    def failed(self, key: str, *, at_least: float = 0.0, at_most: float = MOST_SECONDS) -> None:
        """`at_least`: seconds, as whoever refused wants it."""
        with self._lock:
            now = self._clock()
            before, until = self._waits.get(key, (0.0, 0.0))
            if now < until:
                return  # one of many that were under way when it first failed
            wait = max(min(2 * before, at_most), FIRST_SECONDS, at_least)
            waits = self._waits.items()
            # What was not tried again for so long is gone, or works.
            self._waits = {one: held for one, held in waits if now < held[1] + MOST_SECONDS}
            self._waits[key] = (wait, now + wait)

    def worked(self, key: str) -> None:
        """Its failures are forgotten, unless it began before the last of them was known."""
        with self._lock:
            if not self.left(key):
                self._waits.pop(key, None)

    def waits(self) -> dict[str, float]:
        """Seconds left, of all keys that may not be tried again yet."""
        with self._lock:
            now = self._clock()
            return {key: until - now for key, (_, until) in self._waits.items() if now < until}

    def left(self, key: str) -> float:
        """Seconds until it may be tried again; 0: now."""
        _, until = self._waits.get(key, (0.0, 0.0))
        return max(until - self._clock(), 0.0)
