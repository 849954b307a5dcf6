"""Which content lies in host memory: the tier between the device and the store.

Pure bookkeeping over slot numbers, as `blocks` is for the device. What parked or waiting requests
will come back for is pinned; of the rest, the least recently used goes when room is needed.
"""

from collections import OrderedDict
from collections.abc import Iterable

from sojourn_runtime.engine.prefix import Entry


class HostTier:
    """Slots 0..count-1, each of one block."""

    __slots__ = ("_blank", "_loose", "_pinned", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._blank = list(range(count - 1, -1, -1))
        self._loose: OrderedDict[int, Entry] = OrderedDict()
        self._pinned: dict[int, Entry] = {}

    @property
    def free(self) -> int:
        """Slots without content."""
        return len(self._blank)

    @property
    def pinned(self) -> int:
        return len(self._pinned)

    @property
    def room(self) -> bool:
        """A slot can be had."""
        return bool(self._blank or self._loose)

    def take(self) -> tuple[int, Entry | None] | None:
        """A slot for new content, and the entry that must leave it; None if all are pinned."""
        if self._blank:
            return self._blank.pop(), None
        if not self._loose:
            return None
        return self._loose.popitem(last=False)

    def put(self, slot: int, entry: Entry) -> None:
        """The slot that was taken holds the entry's block now."""
        entry.host = slot
        (self._pinned if entry.pins else self._loose)[slot] = entry

    def give_back(self, slot: int) -> None:
        """Nothing came into the slot that was taken."""
        self._blank.append(slot)

    def drop(self, entry: Entry) -> None:
        """The content is worthless, or somewhere else."""
        if entry.host is not None:
            self._loose.pop(entry.host, None)
            self._pinned.pop(entry.host, None)
            self._blank.append(entry.host)
            entry.host = None

    def pin(self, entry: Entry) -> None:
        """It stays, on the host or when it comes there, until as many `unpin`."""
        entry.pins += 1
        if entry.host is not None and entry.host in self._loose:
            self._pinned[entry.host] = self._loose.pop(entry.host)

    def unpin(self, entry: Entry) -> None:
        entry.pins -= 1  # in use until now: of those that may go, it goes last
        if entry.pins == 0 and entry.host in self._pinned:
            self._loose[entry.host] = self._pinned.pop(entry.host)

    def check(self, *, entries: Iterable[Entry], coming: Iterable[int]) -> None:
        """Raises unless slots with content, without, and those being filled make up the tier."""
        placed = {entry.host: entry for entry in entries if entry.host is not None}
        if placed != {**self._loose, **self._pinned}:
            raise AssertionError("slots and names disagree")
        if any(not entry.pins for entry in self._pinned.values()):
            raise AssertionError("a slot is pinned for nobody")
        if any(entry.pins for entry in self._loose.values()):
            raise AssertionError("a slot that somebody needs is not pinned")
        if sorted([*self._blank, *placed, *coming]) != list(range(self.count)):
            raise AssertionError("slots got lost")
