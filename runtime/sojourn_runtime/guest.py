"""The preemption hooks for an engine that is not ours: yield, pause, checkpoint.

A loop that makes tokens asks `Guest.boundary` between two of them, and does what it says. What is
saved, and where, is the engine's business; what the kubelet and the operator must be told is done
here. See `examples/transformers_session.py`.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from sojourn_api import names

from sojourn_runtime.hooks import PauseSwitch, last_word, open_arbiter


class Next(Enum):
    """What the engine does at this token boundary."""

    GO = "go"
    CHECKPOINT = "checkpoint"
    """Save what was made since the last time, and go on."""
    PAUSE = "pause"
    """Save everything, say `paused`, and end with exit code 0."""


class Guest:
    """One process of another engine in a session's pod. Make it before anything heavy is imported:
    from then on a SIGTERM is a pause.
    """

    def __init__(
        self,
        *,
        session: str,
        priority: int,
        granted: tuple[int, ...] = (),
        checkpoint_tokens: int = 256,
        arbiter: Path = Path(names.ARBITER_DIR),
        termination: Path = Path(names.TERMINATION_MESSAGE),
    ) -> None:
        """`priority` is the tier's, `granted` the GPUs; raises ArbiterUnavailable as a session."""
        self.session = session
        self._termination = termination
        self._checkpoint_tokens = checkpoint_tokens
        self._since = 0
        self._begun = 0.0
        self._switch = PauseSwitch()
        self._switch.install()
        self._arbiter = open_arbiter(arbiter, granted=granted, priority=priority)

    @property
    def pausing(self) -> bool:
        return self._switch.at is not None

    @property
    def yielded(self) -> float:
        """Seconds waited for others."""
        return self._arbiter.yielded

    @property
    def slice_left(self) -> float:
        """Seconds until equals may have their turn; 0 while it is not this process's."""
        return self._arbiter.slice_left

    @contextmanager
    def request(self) -> Iterator[None]:
        """While it lasts, lower tiers stand still."""
        self._arbiter.raise_flag()
        try:
            yield
        finally:
            self._arbiter.lower_flag()

    def boundary(self, *, tokens: int = 1) -> Next:
        """Between two steps, after `tokens` were made: waits while others have the right of way."""
        now = time.perf_counter()
        if self._begun:
            self._arbiter.step_done(now - self._begun)
        self._since += tokens
        self._arbiter.wait(unless=lambda: self.pausing)
        if self.pausing:
            return Next.PAUSE
        self._arbiter.step()
        self._begun = time.perf_counter()
        if self._since >= self._checkpoint_tokens:
            self._since = 0
            return Next.CHECKPOINT
        return Next.GO

    def paused(self, snapshot: Mapping[str, Any], *, exact: bool, why: str = "") -> None:
        """The last word: what was saved (`uri`, `tokens`, `bytes`), and whether it goes on exactly.

        The caller ends with exit code 0 behind it.
        """
        self._arbiter.close()
        words = {
            "v": 1,
            "reason": "Paused",
            "message": f"session {self.session} is paused, its context is saved",
            "snapshot": dict(snapshot),
            "exact": exact,
            "exactReason": why,
        }
        if self._termination.parent.is_dir():
            last_word(self._termination, words)
