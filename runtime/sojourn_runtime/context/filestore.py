"""A store in a folder: fsync, hard links that refuse to replace, and flock around a commit."""

import errno
import fcntl
import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sojourn_runtime.context import layout
from sojourn_runtime.context.store import named, newest, stale

VECTORS: Final = 256
"""Buffers per writev; Linux takes 1024."""


class FileStore:
    """A folder of this session alone, on a file system with fsync, hard links and flock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.uri = folder.absolute().as_uri()
        self.sync_seconds = 0.0
        self._drafts = itertools.count()
        self._making = threading.Lock()
        self._made = False

    def _make(self) -> None:
        """The folder itself, before the first write: whoever only looks leaves no trace."""
        with self._making, named(self._folder, "create the folder"):
            if self._made:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            for stray in self._folder.glob(".*.draft"):  # of a process that died while it wrote
                stray.unlink(missing_ok=True)
            self._made = True

    def names(self) -> AbstractSet[str]:
        with named(self._folder, "list"):
            try:
                return {path.name for path in self._folder.iterdir() if path.name[0] != "."}
            except FileNotFoundError:
                return set()

    def read(self, name: str) -> bytes:
        with named(self._folder / name, "read"):
            return (self._folder / name).read_bytes()

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        path = self._folder / name
        with named(path, "read"), path.open("rb", buffering=0) as file:
            file.seek(offset)
            if file.readinto(target) != len(target):
                raise OSError(errno.EIO, "shorter than its manifest says")

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        self._make()
        path = self._folder / name
        with named(path, "write"), self._draft(name, parts) as draft:
            os.link(draft, path)  # unlike a rename, refuses to replace
        return sum(len(part) for part in parts)

    def swap(self, *, expected: str, name: str, data: bytes) -> None:
        self._make()
        with self._locked():
            found = newest(self.names())
            if found != expected:
                raise stale(found, expected=expected, uri=self.uri)
            self.put(name, [data])
            self._sync_folder()  # makes the names of earlier objects durable, too

    def log(self, name: str) -> "FileLog":
        self._make()
        return FileLog(self._folder / name)

    def delete(self, name: str) -> None:
        with named(self._folder / name, "delete"):
            (self._folder / name).unlink(missing_ok=True)

    def _sync(self, descriptor: int) -> None:
        """Fsync with the time it took."""
        begin = time.perf_counter()
        os.fsync(descriptor)
        self.sync_seconds += time.perf_counter() - begin

    @contextmanager
    def _draft(self, name: str, parts: Sequence[bytes | memoryview]) -> Iterator[Path]:
        """The whole content under a passing name, synced."""
        draft = self._folder / f".{name}.{os.getpid()}-{next(self._drafts)}.draft"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                _write_all(descriptor, parts)
                self._sync(descriptor)
            finally:
                os.close(descriptor)
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        with named(self._folder, "sync"):
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._sync(descriptor)
            finally:
                os.close(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with named(self._folder / layout.LOCK, "lock"):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._folder / layout.LOCK, flags, 0o640)
        try:
            with named(self._folder / layout.LOCK, "lock"):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    while left:
        written = os.writev(descriptor, left[:VECTORS])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


class FileLog:
    """A file opened for appending; the kernel has what `append` returned from."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with named(path, "open"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o640)
            self._length = os.fstat(self._descriptor).st_size
        self._torn = False

    def append(self, data: bytes) -> None:
        """All of `data` or nothing: who reads the log stops at half a record."""
        with named(self._path, "append"):
            if self._torn:
                raise OSError(errno.EIO, "an append that failed before could not be taken back")
            self._torn = True
            try:
                _write_all(self._descriptor, [data])
            except OSError:
                os.ftruncate(self._descriptor, self._length)
                self._torn = False
                raise
            self._torn = False
            self._length += len(data)

    def close(self) -> None:
        os.close(self._descriptor)
