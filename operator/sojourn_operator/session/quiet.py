"""Holds back what would only repeat with other numbers. Pure but for its memory; time is given.

A hundred waiting sessions would else be written anew for every slice that comes free somewhere.
"""

import threading
from typing import Final

SECONDS: Final = 5.0
"""So old may the numbers be that a waiting session shows."""

ROOM: Final = 256
"""Keys remembered before the first look for those that may be forgotten."""


class Quiet:
    """Remembers when each key last spoke."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._spoke: dict[str, float] = {}
        self._room = ROOM
        self._lock = threading.Lock()

    def spoke(self, key: str, *, now: float) -> None:
        """It says something now, so it keeps still for a while."""
        with self._lock:
            self._spoke[key] = now
            if len(self._spoke) > self._room:
                self._spoke = {one: at for one, at in self._spoke.items() if self._holds(at, now)}
                self._room = max(2 * len(self._spoke), ROOM)

    def until(self, key: str, *, now: float) -> float | None:
        """When it may speak again; None: now."""
        at = self._spoke.get(key)
        return at + self._seconds if at is not None and self._holds(at, now) else None

    def _holds(self, at: float, now: float) -> bool:
        return now < at + self._seconds
