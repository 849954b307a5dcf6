"""Grants that a kubelet does not list, though they are not over.

Pure sets of (ordinal, slot). Two kinds: those that live, which a kubelet without its checkpoint
never lists and would give again; and those that one which has just started may still list.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sojourn_deviceplugin.ledger import Grant, Keys

NONE: Keys = frozenset()
Listed = Collection[tuple[int, frozenset[str]]]
"""Ordinal and devices of what the kubelet lists."""


@dataclass(slots=True)
class Forgotten:
    """Not safe for threads: the caller holds a lock."""

    living: Keys = NONE
    """A process has their page locked: their slices are refused to others."""
    awaited: Keys = NONE

    @property
    def spared(self) -> Keys:
        return self.living | self.awaited

    def restarted(self, grants: Iterable[Grant], *, living: Keys) -> None:
        """A kubelet has just started: all that was granted before is awaited."""
        self.living = living
        self.awaited = frozenset(grant.key for grant in grants) - living

    def listed(
        self, listed: Listed, grants: Iterable[Grant], *, living: Keys, patient: bool
    ) -> None:
        """It has made a list; what it has listed once is not awaited any more."""
        self.living = living
        if not patient:
            self.awaited = NONE
            return
        come = frozenset(grant.key for grant in grants if (grant.ordinal, grant.devices) in listed)
        self.awaited -= come | living

    def alive(self, grant: Grant) -> bool:
        return grant.key in self.living
