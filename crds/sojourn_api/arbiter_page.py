"""The owner's side of the arbiter: a pod's own page, in the folder mounted writable for it."""

import fcntl
import os
import time
from pathlib import Path

from sojourn_api.arbiter import (
    PAGE,
    PAGE_BYTES,
    PAGE_WORDS,
    UNKNOWN,
    W_ALLOC_AT,
    W_ALLOC_LARGEST,
    W_ALLOC_RESERVED,
    W_ALLOC_SPLIT,
    W_ALLOC_USED,
    W_BEAT,
    W_FLAG,
    W_SERVED,
    W_SINCE,
    W_STEPS,
    W_STEPS_DONE,
    W_TURN,
    W_WANTS,
    W_YIELDED,
    ArbiterError,
    PageTakenError,
    lock,
    map_words,
    open_file,
)


class Page:
    """The owner's side: this pod's own page, opened in the folder that Allocate mounted writable.

    The page belongs to this process until it ends: the kernel drops the lock with it, however it
    dies (do not fork without exec after opening: the child would keep the lock). Keep `beat` going
    (a few times per `STALE_NS`) from a thread that a long step cannot hold up, or readers take the
    owner for stopped. One thread at a time calls the other methods.
    """

    def __init__(self, own: Path) -> None:
        path = own / PAGE
        self._fd = open_file(path, size=PAGE_BYTES, writable=True)
        self._locked = False
        try:
            self._words = map_words(self._fd, count=PAGE_WORDS, path=path, writable=True)
            if self._take() == fcntl.F_WRLCK:
                raise PageTakenError(
                    f"{path}: another process of this pod owns it; stop one of them"
                )
        except ArbiterError:
            os.close(self._fd)
            raise
        self.lower_flag()  # whatever an earlier process left raised
        self._words[W_WANTS] = self._words[W_TURN] = 0
        self._words[W_STEPS_DONE] = self._steps = self._words[W_STEPS]
        self._served = self._words[W_SERVED]
        self.beat()

    def _take(self) -> int:
        kind = lock(self._fd)
        self._locked = kind == fcntl.F_UNLCK
        return kind

    @property
    def raised(self) -> bool:
        return bool(self._words[W_FLAG] & 1)

    def raise_flag(self) -> None:
        """A request of this pod begins: lower tiers stop at their next token boundary.

        Raising a raised flag only renews the time limit: another request has begun.
        """
        words = self._words
        now = time.monotonic_ns()
        if not self._locked:
            self._take()
        words[W_BEAT] = words[W_SINCE] = now  # before the flag, so that no reader finds it stale
        if not words[W_FLAG] & 1:
            words[W_FLAG] += 1

    def lower_flag(self) -> None:
        """No request of this pod runs any more; lowering a lowered flag does nothing."""
        words = self._words
        if words[W_FLAG] & 1:
            words[W_FLAG] += 1
            words[W_SINCE] = time.monotonic_ns()

    def beat(self) -> None:
        """The process lives and is not stopped."""
        if not self._locked:
            self._take()
        self._words[W_BEAT] = time.monotonic_ns()

    def step(self) -> None:
        """A step begins (call at the token boundary, after the look at the flags)."""
        self._steps += 1
        self._words[W_STEPS] = self._steps

    def step_done(self, computed_ns: int = 0) -> None:
        """The step that began has ended, after `computed_ns` of computing."""
        self._served += computed_ns
        self._words[W_STEPS_DONE] = self._steps
        self._words[W_SERVED] = self._served

    def yielded(self, waited_ns: int) -> None:
        """Account a wait for others, which metrics show."""
        self._words[W_YIELDED] += waited_ns

    def allocator(
        self, *, reserved: int, used: int, inactive_split: int | None, largest_free: int | None
    ) -> None:
        """Publish the allocator's figures, in bytes; now and then, not at every step.

        Any one thread may, beside the one that calls the other methods.
        """
        words = self._words
        words[W_ALLOC_RESERVED], words[W_ALLOC_USED] = reserved, used
        words[W_ALLOC_SPLIT] = UNKNOWN if inactive_split is None else inactive_split
        words[W_ALLOC_LARGEST] = UNKNOWN if largest_free is None else largest_free
        words[W_ALLOC_AT] = time.monotonic_ns()

    @property
    def words(self) -> memoryview:
        """The page itself, for the turns among equals (`arbiter_turn`)."""
        return self._words

    def close(self) -> None:
        """Lower the flag and let go of the page."""
        self.lower_flag()
        self._words[W_WANTS] = self._words[W_TURN] = 0
        self._words.release()  # the mapping holds the file description, and so the lock, as well
        os.close(self._fd)
