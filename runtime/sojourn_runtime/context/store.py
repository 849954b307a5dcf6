"""Where a saved context lives: a folder, or another place that can keep two promises.

`put` writes an object that must not exist yet; `swap` commits a manifest only while the expected
one is the newest, so that of two processes with one session, one is told that it is stale. When
`swap` returns, the manifest and all that was put before are durable. Plus reading, deleting, and a
log that can be appended to. What the objects mean belongs to `snapshot` and `journal`.
"""

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
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from sojourn_runtime.context import layout
from sojourn_runtime.context.errors import StaleEpoch, StoreFull, StoreUnwritable, UnsupportedStore

VECTORS: Final = 256
"""Buffers per writev; Linux takes 1024."""
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Log(Protocol):
    """An object that grows."""

    def append(self, data: bytes) -> None:
        """On return the data survives the death of this process, not that of the machine."""

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


def stale(found: str, *, expected: str, uri: str) -> StaleEpoch:
    """The error of a commit that found another manifest than it builds on."""
    return StaleEpoch(
        f"{uri}: the newest manifest is {found or 'none'}, not {expected or 'none'}: another start "
        "of this session writes here; end this one"
    )


@contextmanager
def _named(path: Path | str, verb: str) -> Iterator[None]:
    """Turn the system's errors into ours, with the object's name."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            message = f"{path}: no space left to {verb}; make room or enlarge the store's volume"
            raise StoreFull(message) from error
        message = f"{path}: cannot {verb}: {error.strerror}; check the store's mount and its owner"
        raise StoreUnwritable(message) from error


class FileStore:
    """A folder of this session alone, on a file system with fsync, hard links and flock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.uri = folder.absolute().as_uri()
        self.sync_seconds = 0.0
        self._drafts = itertools.count()
        with _named(folder, "create the folder"):
            folder.mkdir(parents=True, exist_ok=True)
            for stray in folder.glob(".*.draft"):  # of a process that died while it wrote
                stray.unlink(missing_ok=True)

    def names(self) -> AbstractSet[str]:
        with _named(self._folder, "list"):
            return {path.name for path in self._folder.iterdir() if path.name[0] != "."}

    def read(self, name: str) -> bytes:
        with _named(self._folder / name, "read"):
            return (self._folder / name).read_bytes()

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        path = self._folder / name
        with _named(path, "read"), path.open("rb", buffering=0) as file:
            file.seek(offset)
            if file.readinto(target) != len(target):
                raise OSError(errno.EIO, "shorter than its manifest says")

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        path = self._folder / name
        with _named(path, "write"), self._draft(name, parts) as draft:
            os.link(draft, path)  # unlike a rename, refuses to replace
        return sum(len(part) for part in parts)

    def swap(self, *, expected: str, name: str, data: bytes) -> None:
        with self._locked():
            found = newest(self.names())
            if found != expected:
                raise stale(found, expected=expected, uri=self.uri)
            self.put(name, [data])
            self._sync_folder()  # makes the names of earlier objects durable, too

    def log(self, name: str) -> "FileLog":
        return FileLog(self._folder / name)

    def delete(self, name: str) -> None:
        with _named(self._folder / name, "delete"):
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
        with _named(self._folder, "sync"):
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._sync(descriptor)
            finally:
                os.close(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with _named(self._folder / layout.LOCK, "lock"):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._folder / layout.LOCK, flags, 0o640)
        try:
            with _named(self._folder / layout.LOCK, "lock"):
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
        with _named(path, "open"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o640)

    def append(self, data: bytes) -> None:
        with _named(self._path, "append"):
            _write_all(self._descriptor, [data])

    def close(self) -> None:
        os.close(self._descriptor)


class MemoryStore:
    """fsspec's memory://, which lives as long as the process: for trying things out.

    Other fsspec schemes lack a conditional put; `open_store` says so.
    """

    _lock = threading.Lock()
    """Makes check and write one step, for all stores of the process."""

    def __init__(self, uri: str) -> None:
        import fsspec  # noqa: PLC0415 - file:// must not pay for it

        self.uri = uri
        self.sync_seconds = 0.0
        self._files: Any
        self._files, self._folder = fsspec.core.url_to_fs(uri)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def names(self) -> AbstractSet[str]:
        if not self._files.exists(self._folder):
            return set()
        found = self._files.ls(self._folder, detail=False)
        return {name.rpartition("/")[2] for name in found}

    def read(self, name: str) -> bytes:
        with _named(self._path(name), "read"):
            return bytes(self._files.cat_file(self._path(name)))

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        with _named(self._path(name), "read"):
            data = self._files.cat_file(self._path(name), start=offset, end=offset + len(target))
            if len(data) != len(target):
                raise OSError(errno.EIO, "shorter than its manifest says")
            target[:] = data

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        with self._lock:
            return self._put(name, parts)

    def _put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        with _named(self._path(name), "write"):
            if self._files.exists(self._path(name)):
                raise FileExistsError(errno.EEXIST, "exists already")
            data = b"".join(parts)
            self._files.pipe_file(self._path(name), data)
            return len(data)

    def swap(self, *, expected: str, name: str, data: bytes) -> None:
        with self._lock:
            found = newest(self.names())
            if found != expected:
                raise stale(found, expected=expected, uri=self.uri)
            self._put(name, [data])

    def log(self, name: str) -> "MemoryLog":
        return MemoryLog(self._files, self._path(name))

    def delete(self, name: str) -> None:
        with self._lock:
            if self._files.exists(self._path(name)):
                self._files.rm_file(self._path(name))


class MemoryLog:
    """An fsspec file, appended to."""

    def __init__(self, files: Any, path: str) -> None:
        self._files, self._path = files, path
        files.touch(path, truncate=False)

    def append(self, data: bytes) -> None:
        with self._files.open(self._path, "ab") as file:
            file.write(data)

    def close(self) -> None:
        pass


def open_store(uri: str) -> Store:
    """The store at a URI: `file:///folder`, a plain path, `s3://bucket/prefix`, `memory://name`."""
    parts = urlsplit(uri)
    if parts.scheme == "memory":
        return MemoryStore(uri)
    if parts.scheme == "s3":
        from sojourn_runtime.context.objectstore import S3Store  # noqa: PLC0415 - it builds on us

        return S3Store(uri)
    if parts.scheme in {"", "file"}:
        if parts.netloc not in {"", "localhost"}:
            raise UnsupportedStore(f"store {uri}: a file URI has no host; write file:///folder")
        return FileStore(Path(unquote(parts.path) if parts.scheme else uri))
    raise UnsupportedStore(
        f"store {uri}: {parts.scheme} is not supported, for want of a put-if-absent and an append "
        "here; use s3://bucket/prefix, or file:// on a mounted volume"
    )
