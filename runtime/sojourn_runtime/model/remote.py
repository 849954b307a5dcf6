"""Weights behind a URI of fsspec: fetched once into the weights cache, all of it or nothing.

A copy is believed until its digest is asked for and differs; what is in it belongs to `weights`.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sojourn_runtime.model.errors import (
    InvalidConfiguration,
    ModelNotFound,
    UnsupportedModel,
    WeightsUnreachable,
)
from sojourn_runtime.progress import Progress

KINDS: Final = (".safetensors", ".json", ".jinja")
"""Files of a Hugging Face folder that a model is opened from; the rest can be many times larger."""
PIECE: Final = 32 << 20
"""Bytes of an object in one request, and in memory at once."""


def is_remote(uri: str) -> bool:
    """Whether the weights lie elsewhere than in this file system."""
    return urlsplit(uri).scheme not in {"", "file"}


def fetch(uri: str, *, cache_dir: Path) -> Path:
    """The file or folder of the weights in the cache."""
    place = _place(uri, cache_dir)
    copy = place / (urlsplit(uri).path.rstrip("/").rpartition("/")[2] or "model")
    if copy.exists():
        return copy
    with _told(uri, cache_dir):
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=place.parent, prefix="."))
        try:
            _copy(uri, draft / copy.name)
            _publish(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return copy


def forget(uri: str, *, cache_dir: Path) -> None:
    """Let the next start fetch anew."""
    shutil.rmtree(_place(uri, cache_dir), ignore_errors=True)


def _place(uri: str, cache_dir: Path) -> Path:
    return cache_dir / "fetched" / hashlib.sha256(uri.encode()).hexdigest()[:32]


def _copy(uri: str, target: Path) -> None:
    files, path = _files(uri)
    get = _stream if urlsplit(uri).scheme == "s3" else partial(_get, files)
    # asked about a file, fsspec's HTTP would read it whole to look for links
    if path.endswith(".gguf") or not files.isdir(path):
        get(path, target)
        return
    target.mkdir()
    for found in files.ls(path, detail=True):
        name = found["name"].rstrip("/").rpartition("/")[2]
        if found["type"] == "file" and name.endswith(KINDS):
            get(found["name"], target / name)


def _files(uri: str) -> tuple[Any, str]:
    """The file system of a URI and the path within it."""
    import fsspec  # noqa: PLC0415 - file:// must not pay for it

    if urlsplit(uri).scheme != "s3":
        files, path = fsspec.core.url_to_fs(uri)
        return files, path
    from obstore.fsspec import FsspecStore  # noqa: PLC0415 - an extra

    from sojourn_runtime.aws import client_options  # noqa: PLC0415 - for buckets only

    options: dict[str, Any] = {"client_options": client_options(), "skip_instance_cache": True}
    return FsspecStore("s3", **options), uri.removeprefix("s3://").rstrip("/")


def _get(files: Any, path: str, target: Path) -> None:
    files.get_file(path, str(target), callback=_shown(target.name))
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _stream(path: str, target: Path) -> None:
    """An object of a bucket, piece by piece: `get_file` would hold all of it in memory, twice, and
    one request for all of it would have one time-out.
    """
    from obstore.store import S3Store  # noqa: PLC0415 - an extra

    from sojourn_runtime.aws import client_options  # noqa: PLC0415 - for buckets only

    bucket, _, key = path.partition("/")
    options: Any = client_options()
    store = S3Store(bucket, client_options=options)
    found = store.head(key)
    size = found["size"]
    progress = Progress(f"fetching {target.name}", total=size)
    with target.open("wb") as file:
        for begin in range(0, size, PIECE):
            file.write(store.get_range(key, start=begin, end=min(begin + PIECE, size)))
            progress.to(min(begin + PIECE, size))
        if store.head(key)["e_tag"] != found["e_tag"]:
            raise OSError("the object was replaced while it was fetched; try again")
        file.flush()
        os.fsync(file.fileno())


def _shown(name: str) -> Any:
    """What fsspec tells how far it is; not every file system does."""
    from fsspec.callbacks import Callback  # noqa: PLC0415 - file:// must not pay for it

    begun: list[Progress] = []

    def tell(size: int | None, value: int, **_: object) -> None:
        if size and not begun:
            begun.append(Progress(f"fetching {name}", total=size))
        for progress in begun:
            progress.to(value)

    return Callback(hooks={"shown": tell})


def _publish(draft: Path, place: Path) -> None:
    try:
        draft.rename(place)
    except OSError:
        if not place.exists():  # else another start was first, with the same
            raise


@contextmanager
def _told(uri: str, cache_dir: Path) -> Iterator[None]:
    """Every file system has errors of its own; here they become ours."""
    try:
        yield
    except (ImportError, ValueError) as error:
        raise UnsupportedModel(
            f"{uri}: its scheme needs a library that is not installed ({error}); install it (s3:// "
            "needs sojourn[s3]), or mount the weights and use file://"
        ) from error
    except FileNotFoundError as error:
        raise ModelNotFound(f"{uri}: not found; correct LLMModel.spec.uri") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
            raise InvalidConfiguration(
                f"{cache_dir}: the weights cache cannot take {uri} ({error.strerror}); give it a "
                "writable volume with room for the weights"
            ) from error
        raise WeightsUnreachable(
            f"{uri}: cannot be fetched: {' '.join(str(error).split())[:300]}; check the URI, the "
            "network, and the credentials in the environment"
        ) from error
