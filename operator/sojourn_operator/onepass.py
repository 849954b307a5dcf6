"""What one pass of the loop learns on its way: what failed, and when the next pass is due.

It bounds what a pass may write, in time and where something went wrong. What is written is not
known here.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sojourn_operator import metrics
from sojourn_operator.act.api import ApiError, ConflictError
from sojourn_operator.leader import NotLeaderError
from sojourn_operator.patience import API, CONFLICT_SECONDS, Patience

WORK_SECONDS: Final = 2.0
"""Of writing what looks or the plan ask for: then the rest is thought over again, for a Gold
session may have come meanwhile. A guess, long against the 0.1 s that a pass over thousands costs.
"""
LONGEST_SECONDS: Final = 60.0
"""Between two passes: a bound on what a forgotten deadline could cost."""
API_SECONDS: Final = 5.0
"""At most, unless the API server asks for more: a look so often costs it nothing."""
SHORTEST_SECONDS: Final = 0.2
"""A deadline that is due and that nothing was done about waits so long, not a busy loop."""

log = logging.getLogger(__name__)


class OnePass:
    """Begun at `now`, in seconds since 1970; deadlines are given in the same."""

    def __init__(self, now: float, patience: Patience) -> None:
        self.now = now
        self._patience = patience
        self._due = now + LONGEST_SECONDS
        self._failed: set[str] = set()
        self._complained = False
        self._break_at = 0.0
        self._lock = threading.Lock()

    def due(self, when: float | None) -> None:
        """The next pass comes then, or earlier; None says nothing."""
        with self._lock:
            self._due = self._due if when is None else min(self._due, when)

    def begin(self) -> None:
        """A time of writing begins."""
        self._break_at = time.monotonic() + WORK_SECONDS

    def over(self) -> bool:
        """Whether writing has to end: it lasted long enough, or the API server has had enough."""
        if time.monotonic() < self._break_at and not self._patience.left(API):
            return False
        self.due(self.now)
        return True

    def may(self, *keys: str) -> bool:
        """Whether something may be done for all of these: nothing went wrong, or long ago."""
        if self._failed.intersection(keys):
            return False
        left = max(map(self._patience.left, keys))
        if left:
            self.due(time.time() + left)
        return not left

    def leave(self) -> dict[str, float]:
        """Keys that may not be tried in the rest of this pass, with seconds left.

        What is planned without them would not be true of them a moment later.
        """
        waits = self._patience.waits()
        self._failed.update(waits)
        for left in waits.values():
            self.due(time.time() + left)
        return waits

    @contextmanager
    def trying(self, key: str, what: str) -> Iterator[None]:
        """An error is counted, and the key is tried again after a while; others go on."""
        try:
            yield
        except NotLeaderError:
            raise
        except ConflictError as error:
            log.info("%s: %s; tried again", key, error)
            self._fails(key, what, at_most=CONFLICT_SECONDS)
        except ApiError as error:
            log.warning("%s: %s; tried again", key, error)
            self._fails(key, what, at_least=error.retry_after)
            if error.overloaded:
                self._api_has_enough(error.retry_after)
        except Exception:
            # A fault of ours that one session brings out: told, and no other session's affair.
            log.exception("%s: %s failed", key, what)
            self._fails(key, what)
        else:
            self._patience.worked(key)
            self._patience.worked(API)

    def _api_has_enough(self, retry_after: float) -> None:
        """Once in a pass: what is under way fails side by side, and says no more than one does."""
        with self._lock:
            again, self._complained = self._complained, True
        if not again:
            self._patience.failed(API, at_least=retry_after, at_most=API_SECONDS)

    def _fails(self, key: str, what: str, **bounds: float) -> None:
        self._failed.add(key)
        metrics.ERRORS.labels(what).inc()
        self._patience.failed(key, **bounds)
        self.due(time.time() + self._patience.left(key))

    def next(self) -> float:
        """When the next pass is due."""
        if rest := self._patience.left(API):
            return max(self._due, time.time() + rest)
        return max(self._due, self.now + SHORTEST_SECONDS)
