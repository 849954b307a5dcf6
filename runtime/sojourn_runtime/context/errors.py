"""What can be wrong with a saved context or its store.

Each carries the one-word reason of the status and the termination message, and whether another try
may help. Every message names the object, what is wrong with it, and what to do.
"""

from typing import ClassVar


class ContextError(Exception):
    """The context cannot be saved or taken up; what was saved before is untouched."""

    reason: ClassVar[str] = "Crashed"
    retry: ClassVar[bool] = True


class StoreUnwritable(ContextError):  # noqa: N818 - named as the reason is
    """The store cannot be read or written."""

    reason = "StoreUnwritable"


class StoreFull(ContextError):  # noqa: N818
    """No space or quota left."""

    reason = "StoreFull"


class StaleEpoch(ContextError):  # noqa: N818
    """A later start of this session has taken the store over; this process must end."""

    reason = "StaleEpoch"
    retry = False


class SnapshotCorrupt(ContextError):  # noqa: N818
    """Bytes differ from their checksum, and there is nothing older to fall back to."""

    reason = "SnapshotCorrupt"
    retry = False


class SnapshotTooNew(SnapshotCorrupt):
    """The newest snapshot was saved by a newer release: to go back to one before it would lose
    what was said since.
    """


class SnapshotMissing(ContextError):  # noqa: N818
    """The store lacks what was committed to it: emptied, or another volume is mounted."""

    reason = "SnapshotMissing"


class SnapshotOfOtherModel(ContextError):  # noqa: N818
    """The context was made by other weights."""

    reason = "SnapshotOfOtherModel"
    retry = False


class UnsupportedStore(ContextError):  # noqa: N818
    """The URI names a kind of store that cannot keep the contract."""

    reason = "InvalidConfiguration"
    retry = False
