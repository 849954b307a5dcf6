"""A session's folder in an S3-compatible bucket; endpoint and credentials are the usual AWS_ ones.

An object store has no lock, so a commit looks twice: before it puts its manifest and after it. Of
two starts that commit at once at least one sees the other then, takes its own manifest back and
ends. What the verbs mean is said in `store`.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from sojourn_runtime.aws import client_options
from sojourn_runtime.context import layout
from sojourn_runtime.context.errors import StoreFull, StoreUnwritable, UnsupportedStore
from sojourn_runtime.context.store import newest, stale

FULL: Final = ("QuotaExceeded", "StorageFull", "507 Insufficient Storage")
"""How servers say that no room is left; S3 itself has no such error."""
RETRY: Final = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
"""A pause has a grace time: better an early word than ten tries."""


class AlreadyThere(StoreUnwritable):
    """A conditional PUT was refused."""


class S3Store:
    """Objects below `s3://bucket/prefix`, of this session alone."""

    def __init__(self, uri: str) -> None:
        try:
            import obstore  # noqa: PLC0415 - file:// must not pay for it
        except ImportError as error:
            message = f"store {uri}: obstore is not installed; install sojourn[s3]"
            raise UnsupportedStore(message) from error
        self.uri = uri.rstrip("/")
        self.sync_seconds = 0.0
        self._api: Any = obstore
        self._proven = False
        with self._named("", "open"):
            self._bucket: Any = self._api.store.from_url(
                self.uri,
                config={"disable_bulk_delete": True},  # which some servers lack
                client_options=client_options(),
                retry_config=RETRY,
            )

    def names(self) -> AbstractSet[str]:
        with self._named("", "list"):
            found = [one["path"] for some in self._api.list(self._bucket) for one in some]
        return {path for path in found if "/" not in path}

    def read(self, name: str) -> bytes:
        with self._named(name, "read"):
            return bytes(self._api.get(self._bucket, name).bytes())

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        with self._named(name, "read"):
            data = self._api.get_range(self._bucket, name, start=offset, length=len(target))
        if len(data) != len(target):
            raise StoreUnwritable(f"{self.uri}/{name}: shorter than its manifest says")
        target[:] = bytes(data)

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        data = b"".join(parts)
        with self._named(name, "write"):
            self._create(name, data)
        return len(data)

    def swap(self, *, expected: str, name: str, data: bytes) -> None:
        self._prove()
        found = newest(self.names())
        if found != expected:
            raise stale(found, expected=expected, uri=self.uri)
        try:
            self.put(name, [data])
        except AlreadyThere as error:
            raise stale(name, expected=expected, uri=self.uri) from error
        names = self.names()
        before = newest(names - {name})
        if before != expected or newest(names) != name:
            self.delete(name)
            raise stale(before, expected=expected, uri=self.uri)

    def log(self, name: str) -> "S3Log":
        return S3Log(self, name)

    def replace(self, name: str, data: bytes) -> None:
        """Write an object whether it is there or not."""
        with self._named(name, "write"):
            self._api.put(self._bucket, name, data, use_multipart=False)

    def delete(self, name: str) -> None:
        with self._named(name, "delete"):
            self._api.delete(self._bucket, name)

    def _create(self, name: str, data: bytes) -> None:
        # in one request, since the parts of a multipart upload carry no condition
        self._api.put(self._bucket, name, data, mode="create", use_multipart=False)

    def _prove(self) -> None:
        """A server that ignores `If-None-Match: *` replaces the lock instead of refusing."""
        if self._proven:
            return
        for _ in range(2):  # the first may find nothing there
            try:
                with self._named(layout.LOCK, "write"):
                    self._create(layout.LOCK, b"")
            except AlreadyThere:
                self._proven = True
                return
        raise UnsupportedStore(
            f"store {self.uri}: the server ignores a conditional PUT (If-None-Match: *), so two "
            "starts could overwrite each other; use a server that knows it, or file://"
        )

    @contextmanager
    def _named(self, name: str, verb: str) -> Iterator[None]:
        """Turn the library's errors into ours, with the object's name."""
        place = f"{self.uri}/{name}" if name else self.uri
        try:
            yield
        except self._api.exceptions.AlreadyExistsError as error:
            raise AlreadyThere(f"{place}: cannot {verb}: exists already") from error
        except (self._api.exceptions.BaseError, OSError, ValueError) as error:
            text = str(error)
            if any(word in text for word in FULL):
                message = f"{place}: no space left to {verb}; make room or raise the quota"
                raise StoreFull(message) from error
            raise StoreUnwritable(
                f"{place}: cannot {verb}: {' '.join(text.split())[:300]}; check the bucket, "
                "AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error


class S3Log:
    """An object written anew by each append: it is short, since every commit begins another."""

    def __init__(self, store: S3Store, name: str) -> None:
        self._store, self._name = store, name
        self._data = b""
        store.put(name, [b""])

    def append(self, data: bytes) -> None:
        longer = self._data + data
        self._store.replace(self._name, longer)
        self._data = longer  # not before: what was refused must not come with the next append

    def close(self) -> None:
        pass
