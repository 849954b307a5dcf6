"""The store that a URI names."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from sojourn_runtime.context.errors import UnsupportedStore
from sojourn_runtime.context.filestore import FileStore
from sojourn_runtime.context.store import Store


def open_store(uri: str) -> Store:
    """The store at a URI: `file:///folder`, a plain path, `s3://bucket/prefix`, `memory://name`."""
    parts = urlsplit(uri)
    # Imported when asked for: a start from a folder, which is the usual one, must not pay for them.
    if parts.scheme == "memory":
        from sojourn_runtime.context.memorystore import MemoryStore  # noqa: PLC0415

        return MemoryStore(uri)
    if parts.scheme == "s3":
        from sojourn_runtime.context.objectstore import S3Store  # noqa: PLC0415

        return S3Store(uri)
    if parts.scheme in {"", "file"}:
        if parts.netloc not in {"", "localhost"}:
            raise UnsupportedStore(f"store {uri}: a file URI has no host; write file:///folder")
        return FileStore(Path(unquote(parts.path) if parts.scheme else uri))
    raise UnsupportedStore(
        f"store {uri}: {parts.scheme} is not supported, for want of a put-if-absent and an append "
        "here; use s3://bucket/prefix, or file:// on a mounted volume"
    )
