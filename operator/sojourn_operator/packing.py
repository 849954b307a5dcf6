"""How many sessions may be moved now for the sake of packing, and what a dry run would move.

Counts what this replica moved. Whoever begins to decide does not know what was moved just before:
so the budget begins spent.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from sojourn_operator.plan import Action, Defrag, DefragMode, Move
from sojourn_operator.plan.actions import DEFRAGMENTED

MINUTE: Final = 60.0


class Packing:
    """At most `most` moves in any minute, on the clock of the passes."""

    def __init__(self, mode: DefragMode, *, most: int) -> None:
        self._mode = mode
        self._most = most
        self._moved: deque[float] = deque()
        self._begun = False
        self._told: frozenset[str] = frozenset()

    def allowed(self, now: float) -> Defrag:
        """What the plan may do now."""
        if self._mode is not DefragMode.ON:
            return Defrag(self._mode, moves=self._most)
        if not self._begun:
            self._begun = True
            self._moved.extend([now] * self._most)
        while self._moved and self._moved[0] <= now - MINUTE:
            self._moved.popleft()
        return Defrag(self._mode, moves=max(self._most - len(self._moved), 0))

    def moved(self, action: Action, *, now: float) -> None:
        """Count an action that was carried out, if it is such a move."""
        if isinstance(action, Move) and action.reason == DEFRAGMENTED:
            self._moved.append(now)

    def due(self) -> float | None:
        """When the next move is allowed; None: now, or never."""
        return self._moved[0] + MINUTE if len(self._moved) >= self._most else None

    def news(self, notes: Iterable[str]) -> list[str]:
        """What a dry run says that the one before did not."""
        before, self._told = self._told, frozenset(notes)
        return sorted(self._told - before)
