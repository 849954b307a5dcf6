"""Writes a file of the weights cache so that other processes see all of it or nothing."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sojourn_runtime.model.errors import InvalidConfiguration

Chunk = bytes | memoryview


def write_atomically(path: Path, chunks: Iterable[Chunk]) -> None:
    """Durable before it is visible; parallel writers of the same content do no harm."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:32]}-")
        try:
            with os.fdopen(number, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            Path(name).rename(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidConfiguration(
            f"{path.parent}: the weights cache cannot be written ({error.strerror}); "
            "give it a writable volume with room for the converted weights"
        ) from error
