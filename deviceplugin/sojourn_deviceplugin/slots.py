"""The arbiter's folders on this node: makes pages ahead of need, and remembers who got which.

Files only; who may claim what is written by `promote`. The journal maps slots to devices, so that a
plugin that was killed finds its grants again. Layout of the pages: `sojourn_api.arbiter`.
"""

import logging
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sojourn_api import arbiter

from sojourn_deviceplugin.journal import Journal
from sojourn_deviceplugin.ledger import UNKNOWN, Grant

log = logging.getLogger(__name__)

SPARE: Final = 8
"""Pages kept ready per GPU: Allocate then makes no folders. More than pods start in one second."""
GRANTS: Final = "grants"
JOURNAL: Final = "journal"


class Slots:
    """The slots of one GPU. Any thread may `take` and `drop`; the rest is for one at a time."""

    def __init__(self, folder: Path, limits: arbiter.Limits) -> None:
        """`folder` is `/run/sojourn/<uuid>`."""
        self.grants = folder / GRANTS
        self._index = arbiter.create_index(self.grants, limits)
        self._spare: deque[str] = deque()
        self._over: deque[str] = deque()
        self._numbers = threading.Lock()
        self._journal = Journal(folder / JOURNAL)
        self._journal.forget({slot for slot in self._journal.held if not self._whole(slot)})
        names = set(self._names())
        self._next = 1 + max(map(int, names), default=0)
        for name in names - set(self._journal.held):
            shutil.rmtree(self.grants / name, ignore_errors=True)
        self.tidy()

    def _whole(self, slot: str) -> bool:
        return (self.grants / slot / arbiter.TIER).exists()

    def _names(self) -> Iterator[str]:
        return (entry.name for entry in self.grants.iterdir() if entry.name.isdecimal())

    def restore(self, ordinal: int) -> Iterator[Grant]:
        """The grants of before this start, at the tiers that they had."""
        for slot, devices in tuple(self._journal.held.items()):
            try:
                tier = arbiter.read_tier(self.grants, slot)
            except arbiter.ArbiterError as error:
                log.warning("tier lost over a restart", extra={"slot": slot, "error": str(error)})
                tier = UNKNOWN
            mps = slot in self._journal.mps
            yield Grant(ordinal, devices, slot=slot, made_ns=0, tier=tier, mps=mps)

    def tidy(self) -> None:
        """Make pages until enough are ready, and remove those of grants that are over.

        One thread at a time; none that a container waits for.
        """
        while self._over:
            shutil.rmtree(self.grants / self._over.popleft(), ignore_errors=True)
            arbiter.bump(self._index)
        while len(self._spare) < SPARE:
            self._spare.append(self._make())

    def _make(self) -> str:
        with self._numbers:
            slot, self._next = str(self._next), self._next + 1
        arbiter.create_grant(self.grants, slot)
        return slot

    def take(self, devices: frozenset[str], *, mps: bool = False) -> str:
        """Hand out a ready page, at the lowest tier; the journal knows it before the kubelet."""
        try:
            slot = self._spare.popleft()
        except IndexError:
            slot = self._make()
        self._journal.record(slot, devices, mps=mps)
        arbiter.bump(self._index)
        return slot

    def promote(self, slot: str, tier: arbiter.Tier) -> None:
        """Say what the grant may claim from now on."""
        arbiter.write_tier(self.grants, slot, tier)
        arbiter.bump(self._index)

    def drop(self, slot: str) -> None:
        """The grant is over; `tidy` removes its page. Its name is not used again: a container that
        is still ending keeps the old folder mounted.
        """
        self._journal.record(slot, frozenset())
        self._over.append(slot)

    def page(self, slot: str) -> arbiter.PageState | None:
        """What the pod wrote, for reports; None if it spoilt its page."""
        try:
            return arbiter.read_page(self.grants, slot)
        except arbiter.ArbiterError:
            return None

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()
