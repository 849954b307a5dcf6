"""One at a time on this machine, also across checkouts: builds, starts and stops."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from localcluster.paths import cache_folder


class TakenError(Exception):
    """Another process holds it; the text says which."""


def _file(name: str) -> Path:
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """As `exclusive`, but for whoever shall not wait: TakenError names the process that has it."""
    with _file(name).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            raise TakenError(f"process {handle.read().strip() or 'unknown'}") from error
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """The kernel lets go of it with the process, however that ends."""
    with _file(name).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"somebody else is at it ({name}): waiting ...", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
