"""Layers of images: plain tars named by their digest, built once for each key, kept in the cache.

Uncompressed: they never travel over a network, and unpacking is what costs time.
What goes into them belongs to `contents`, how they become images to `images`.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.locks import exclusive
from localcluster.paths import cache_folder


@dataclass(frozen=True, slots=True)
class Blob:
    """`digest` is `sha256:<hex>`; for an uncompressed layer it is the diff id as well."""

    digest: str
    size: int

    @property
    def path(self) -> Path:
        return blob_folder() / self.digest.removeprefix("sha256:")


def image_cache() -> Path:
    return cache_folder() / "images"


def blob_folder() -> Path:
    return image_cache() / "blobs" / "sha256"


def key_of(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


def layer(name: str, key: str, fill: Callable[[Path], None], *, keep_times: bool = False) -> Blob:
    """The layer that `fill` makes in an empty folder, unless it was made before under this key."""
    record = _record(name, key)
    blob = _known(record)
    if blob is not None:
        return blob
    with exclusive("images"):
        return _known(record) or _build(name, record, fill, keep_times=keep_times)


def _known(record: Path) -> Blob | None:
    if not record.exists():
        return None
    blob = Blob(**json.loads(record.read_text()))
    if not blob.path.exists():
        return None
    _mark_used(record, blob.path)
    return blob


def _build(name: str, record: Path, fill: Callable[[Path], None], *, keep_times: bool) -> Blob:
    print(f"building image layer {name} ...", flush=True)
    with scratch() as folder:
        fill(folder)
        blob = _pack(folder, keep_times=keep_times)
    record.parent.mkdir(parents=True, exist_ok=True)
    unfinished = record.with_name(f".{record.name}")
    unfinished.write_text(json.dumps(asdict(blob)))
    unfinished.replace(record)
    return blob


def known_as(name: str, key: str, other: str) -> None:
    """The layer of `key` is the one of `other` too."""
    if other != key:
        shutil.copy(_record(name, key), _record(name, other))


def _record(name: str, key: str) -> Path:
    return image_cache() / "layers" / f"{name}-{key}.json"


def put(content: bytes) -> Blob:
    """A small blob: a manifest or a configuration."""
    blob = Blob(f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))
    if blob.path.exists():
        _mark_used(blob.path)
    else:
        blob_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=blob_folder(), delete=False) as unfinished:
            unfinished.write(content)
        Path(unfinished.name).replace(blob.path)
    return blob


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder on the disk of the cache, readable by all as a root file system must be."""
    image_cache().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".scratch-", dir=image_cache()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _mark_used(*files: Path) -> None:
    for file in files:
        file.touch()


def forget_unused(*, days: float = 3) -> None:
    """Layers of code that has changed since, and what a killed build has left.

    One that is wanted again is built again.
    """
    oldest = time.time() - days * 86400
    for rest in image_cache().glob(".scratch-*"):
        if rest.stat().st_mtime < oldest:
            shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
    for folder in (image_cache() / "layers", blob_folder()):
        for file in folder.iterdir():
            if file.stat().st_mtime < oldest:
                file.unlink(missing_ok=True)


def _pack(folder: Path, *, keep_times: bool) -> Blob:
    """Times are dropped where nothing depends on them, so that equal content is an equal layer."""
    blob_folder().mkdir(parents=True, exist_ok=True)
    archive = folder.parent / f"{folder.name}.tar"
    times = [] if keep_times else ["--mtime=@0", "--owner=0", "--group=0", "--mode=u+w,go-w,a+rX"]
    subprocess.run(
        [
            *("tar", "--create", "--sort=name", "--numeric-owner", *times),
            *("--file", str(archive), "--directory", str(folder), "."),
        ],
        check=True,
    )
    with archive.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    blob = Blob(f"sha256:{digest}", archive.stat().st_size)
    archive.replace(blob.path)
    return blob
