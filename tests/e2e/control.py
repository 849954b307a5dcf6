"""The control run: the same model served by a plain process on this machine, never paused.

What the story's sessions wrote must equal what this one writes, token for token.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kube import NotInTimeError

ENDS_WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""A telling that is killed ends no block; the kernel then ends what it has started."""


@contextmanager
def control_runtime(weights: Path, folder: Path, *, model_name: str) -> Iterator[str]:
    """A base URL of a runtime process with its store in `folder`; ended with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *ENDS_WITH_ITS_PARENT,
        *(sys.executable, "-m", "sojourn_runtime", "serve"),
        *("--model", str(weights), "--model-name", model_name, "--port", str(port)),
        *("--store", (folder / "store").as_uri(), "--session", "control", "--device", "cpu"),
        *("--weights-cache", str(folder / "weights")),
    ]
    log = folder / "control.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=dict(os.environ), stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            _wait_ready(f"http://127.0.0.1:{port}/readyz", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            raise NotInTimeError(f"the control runtime ended: {log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise NotInTimeError(f"the control runtime is not ready: {log.read_text()}")
