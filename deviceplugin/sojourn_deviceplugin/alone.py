"""One plugin per node: two would delete each other's sockets and write each other's files.

The lock is the kernel's, so it goes with the process, however that ends.
"""

import contextlib
import fcntl
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

FILE: Final = "lock"
PATIENCE_SECONDS: Final = 20.0
"""For a predecessor that is ending; then the kubelet's back-off is better than a wait unseen."""
LOOK_SECONDS: Final = 0.1


class NotAloneError(Exception):
    """Another plugin runs, or the lock cannot be had; the text names the file."""


@contextlib.contextmanager
def alone(folder: Path, *, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the lock of this state folder; waits for who has it, but not for ever."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise NotAloneError(f"{path}: cannot be opened: {error}; is stateDir writable?") from error
    with file:
        _wait_for(file.fileno(), path, until=time.monotonic() + patience)
        yield


def _wait_for(descriptor: int, path: Path, *, until: float) -> None:
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise NotAloneError(
                    f"{path}: another sojourn-deviceplugin of this node holds it; end that one, or "
                    "take one of two releases off this node"
                ) from None
            if not told:
                log.warning("another plugin runs, waiting for its end", extra={"lock": str(path)})
            told = True
            time.sleep(LOOK_SECONDS)
        except OSError as error:
            raise NotAloneError(
                f"{path}: cannot be locked: {error}; put stateDir on a disk of the node"
            ) from error
        else:
            return
