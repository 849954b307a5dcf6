"""What a place must promise to hold a saved context, and the errors it speaks in.

`put` writes an object that must not exist yet; `swap` commits a manifest only while the expected
one is the newest, so that of two processes with one session, one is told that it is stale. When
`swap` returns, the manifest and all that was put before are durable. Plus reading, deleting, and a
log that can be appended to. What the objects mean belongs to `snapshot` and `journal`, how a place
keeps its promise to `filestore`, `objectstore` and `memorystore`.
"""

import errno
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from sojourn_runtime.context import layout
from sojourn_runtime.context.errors import (
    ContextError,
    SnapshotMissing,
    StaleEpoch,
    StoreFull,
    StoreUnwritable,
)
from sojourn_runtime.context.layout import BEGINNING, Commit

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Log(Protocol):
    """An object that grows."""

    def append(self, data: bytes) -> None:
        """On return the data survives the death of this process, not that of the machine.

        If it raises, nothing of the data stands before what later calls append.
        """

    def close(self) -> None: ...


class Store(Protocol):
    """A folder of objects by name (see `layout`)."""

    uri: str
    sync_seconds: float
    """Time spent in fsync so far; benchmarks tell it apart."""

    def names(self) -> AbstractSet[str]:
        """Every object there is."""

    def read(self, name: str) -> bytes: ...

    def read_into(self, name: str, offset: int, target: memoryview) -> None: ...

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        """Write an object that must be absent; returns its bytes."""

    def swap(self, *, expected: str, name: str, data: bytes) -> None:
        """Commit the manifest `name` while `expected` ("" for none) is the newest: StaleEpoch."""

    def log(self, name: str) -> Log: ...

    def delete(self, name: str) -> None: ...


def newest(names: AbstractSet[str]) -> str:
    """Name of the newest manifest, "" for none."""
    commits = [found[1] for n in names if (found := layout.parse(n)) and found[0] == "manifest"]
    return max(commits).manifest if commits else ""


def stale(found: str, *, expected: str, uri: str) -> ContextError:
    """The error of a commit that found another manifest than it builds on."""
    if _place(found) < _place(expected):
        return missing(found, expected=expected, uri=uri)
    return StaleEpoch(
        f"{uri}: the newest manifest is {found or 'none'}, not {expected or 'none'}: another start "
        "of this session writes here; end this one"
    )


def check_present(names: AbstractSet[str], *, expected: str, uri: str) -> None:
    """SnapshotMissing if all manifests are older than one that is known to have been committed."""
    found = newest(names)
    if _place(found) < _place(expected):
        raise missing(found, expected=expected, uri=uri)


def missing(found: str, *, expected: str, uri: str) -> SnapshotMissing:
    """The error of a store that lost a commit."""
    return SnapshotMissing(
        f"{uri}: {expected} was saved here, the newest manifest found is {found or 'none'}; mount "
        "the right volume or restore the folder; to start without the context, delete the session, "
        "and a SessionSnapshot that was retained of it, and apply it again"
    )


def _place(name: str) -> Commit:
    found = layout.parse(name)
    return found[1] if found else BEGINNING


@contextmanager
def named(path: Path | str, verb: str) -> Iterator[None]:
    """Turn the system's errors into ours, with the object's name."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            message = f"{path}: no space left to {verb}; make room or enlarge the store's volume"
            raise StoreFull(message) from error
        message = f"{path}: cannot {verb}: {error.strerror}; check the store's mount and its owner"
        raise StoreUnwritable(message) from error
