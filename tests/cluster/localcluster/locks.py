"""One at a time on this machine, also across checkouts: builds, starts and stops."""

import contextlib
import fcntl
import sys
from collections.abc import Iterator

from localcluster.paths import cache_folder


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """The kernel lets go of it with the process, however that ends."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"somebody else is at it ({name}): waiting ...", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
