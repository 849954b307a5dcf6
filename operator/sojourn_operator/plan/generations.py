"""Two generations of the plan side by side: the new one decides, the old one takes over when it
must.

It does after three failures in a row, for a version that does not fit, or when a decision takes
too long. The clock is given; events and metrics are made elsewhere from `active` and `reason`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sojourn_operator.plan.actions import Plan
from sojourn_operator.plan.plugins import API_VERSION
from sojourn_operator.plan.state import State

FAILURES: Final = 3
SLOW_SECONDS: Final = 0.8
TRY_AGAIN_SECONDS: Final = 300.0
"""How long the old generation decides before the new one is tried again: a guess."""


FAILED: Final = "failures"
VERSION: Final = "version"
SLOW: Final = "slow"


class Plans(Protocol):
    """A generation."""

    def plan(self, state: State) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation with the version of the interface that it was made for."""

    name: str
    plans: Plans
    api_version: int = API_VERSION


class Generations:
    """`plan` never fails while the old generation works; what happened stands in `reason`."""

    def __init__(
        self,
        new: Generation,
        old: Generation,
        *,
        clock: Callable[[], float],
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self._new = new
        self._old = old
        self._clock = clock
        self._slow = slow_seconds
        self._failures = 0
        self._until: float | None = None
        self.reason = ""
        """Why the old generation decides; empty while the new one does."""
        self.cause = ""
        """The same in a word: `FAILED`, `VERSION` or `SLOW`."""
        self.fallbacks = 0
        if new.api_version != API_VERSION:
            why = f"is made for version {new.api_version}, not {API_VERSION}"
            self._fall_back(why, VERSION, wait=None)

    @property
    def active(self) -> str:
        """The name of the generation that decides now."""
        return self._old.name if self.reason else self._new.name

    def plan(self, state: State) -> Plan:
        """The plan of the generation that decides now."""
        if self.reason and not self._is_due():
            return self._old.plans.plan(state)
        begin = self._clock()
        try:
            found = self._new.plans.plan(state)
        except Exception as error:  # noqa: BLE001 - whatever a generation raises, the other decides
            return self._failed(state, f"{type(error).__name__}: {error}")
        # A plan holds many decisions after a start or a storm of arrivals: each has its own time.
        took = (self._clock() - begin) / max(len(found.actions), 1)
        if took > self._slow:
            # This plan is sound, if late; the next ones are the old generation's.
            limit = 1000 * self._slow
            why = f"took {1000 * took:.0f} ms a decision, the limit is {limit:.0f}"
            self._fall_back(why, SLOW, wait=TRY_AGAIN_SECONDS)
            return found
        self._failures = 0
        self.reason = self.cause = ""
        return found

    def _is_due(self) -> bool:
        return self._until is not None and self._clock() >= self._until

    def _failed(self, state: State, problem: str) -> Plan:
        self._failures += 1
        if self._failures >= FAILURES or self.reason:
            why = f"failed {self._failures} times in a row: {problem}"
            self._fall_back(why, FAILED, wait=TRY_AGAIN_SECONDS)
        return self._old.plans.plan(state)

    def _fall_back(self, why: str, cause: str, *, wait: float | None) -> None:
        """The old one decides for `wait` seconds, or for good."""
        self.reason, self.cause = f"generation {self._new.name} {why}", cause
        self.fallbacks += 1
        self._until = None if wait is None else self._clock() + wait
