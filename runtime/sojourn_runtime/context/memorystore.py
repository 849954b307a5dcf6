"""A store in the memory of this process, by fsspec: for trying things out."""

import errno
import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from sojourn_runtime.context.store import named, newest, stale


class MemoryStore:
    """fsspec's memory://, which lives as long as the process.

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
        with named(self._path(name), "read"):
            return bytes(self._files.cat_file(self._path(name)))

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        with named(self._path(name), "read"):
            data = self._files.cat_file(self._path(name), start=offset, end=offset + len(target))
            if len(data) != len(target):
                raise OSError(errno.EIO, "shorter than its manifest says")
            target[:] = data

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        with self._lock:
            return self._put(name, parts)

    def _put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        with named(self._path(name), "write"):
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
