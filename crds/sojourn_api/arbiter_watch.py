"""The readers' side of the arbiter: whether somebody with a higher claim computes now."""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from sojourn_api.arbiter import (
    I_GENERATION,
    I_HOLD_NS,
    I_STALE_NS,
    LOWEST,
    PAGE,
    PAGE_BYTES,
    PAGE_WORDS,
    POD,
    W_BEAT,
    W_FLAG,
    W_SINCE,
    ArbiterError,
    in_time,
    locked_by,
    map_words,
    open_file,
    read_index,
    read_tier,
    slots,
)


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose flag is up, and since when (monotonic ns)."""

    slot: str
    priority: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class _Seen:
    slot: str
    priority: int
    fd: int
    words: memoryview


class Watch:
    """The reader's side: asks whether somebody with a higher claim computes now.

    Only pages of strictly higher priority are mapped. An owner that cuts its file short kills the
    processes that map it (SIGBUS), so a lower tier must never be able to do that to a higher one.
    """

    def __init__(self, grants: Path, *, own_slot: str = "") -> None:
        """`grants` is the folder mounted read-only; `own_slot` is left out of every answer."""
        self._grants = grants
        self._own = own_slot
        self._index = read_index(grants)
        self._generation = 0
        self._priority = LOWEST
        self._higher: list[_Seen] = []
        self._flags: list[memoryview] = []

    def higher_raised(self, my_priority: int) -> bool:
        """Whether a live grant of strictly higher priority has its flag up: then do not step.

        Below 2 us with 16 higher grants while no flag is up; call it at every token boundary.
        """
        if self._index[I_GENERATION] != self._generation or my_priority != self._priority:
            self._rescan(my_priority)
        for words in self._flags:
            if words[W_FLAG] & 1:
                return self.holder(my_priority) is not None
        return False

    def holder(self, my_priority: int) -> Holder | None:
        """Who of higher priority holds the GPU; the highest, then the longest waiting, of several.

        A raised flag counts while its owner lives (lock), is not stopped (heartbeat), and has not
        held longer than one request may.
        """
        if self._index[I_GENERATION] != self._generation or my_priority != self._priority:
            self._rescan(my_priority)
        now = time.monotonic_ns()
        held = [
            Holder(slot=seen.slot, priority=seen.priority, since_ns=seen.words[W_SINCE])
            for seen in self._higher
            if self._counts(seen, now)
        ]
        return min(held, key=lambda h: (-h.priority, h.since_ns, h.slot), default=None)

    def _counts(self, seen: _Seen, now: int) -> bool:
        words = seen.words
        return bool(
            words[W_FLAG] & 1
            and in_time(
                now,
                beat_ns=words[W_BEAT],
                since_ns=words[W_SINCE],
                stale_ns=self._index[I_STALE_NS],
                hold_ns=self._index[I_HOLD_NS],
            )
            and locked_by(seen.fd) != fcntl.F_UNLCK
        )

    def _rescan(self, my_priority: int) -> None:
        generation = self._index[I_GENERATION]  # before the look: a change during it is seen next
        self.close()
        for entry in slots(self._grants):
            if entry == self._own:
                continue
            try:
                seen = self._map(entry, my_priority)
            except ArbiterError:
                continue  # a grant that goes away, or a page its owner spoilt: it claims nothing
            if seen is not None:
                self._higher.append(seen)
        self._flags = [seen.words for seen in self._higher]
        self._generation, self._priority = generation, my_priority

    def _map(self, slot: str, my_priority: int) -> _Seen | None:
        tier = read_tier(self._grants, slot)
        if tier.priority <= my_priority:
            return None
        path = self._grants / slot / POD / PAGE
        fd = open_file(path, size=PAGE_BYTES)
        try:
            words = map_words(fd, count=PAGE_WORDS, path=path)
        except ArbiterError:
            os.close(fd)
            raise
        return _Seen(slot=slot, priority=tier.priority, fd=fd, words=words)

    def close(self) -> None:
        """Let go of the pages; the next question opens them again."""
        for seen in self._higher:
            seen.words.release()
            os.close(seen.fd)
        self._higher, self._flags, self._generation = [], [], 0
