"""What a user meets who kills a demo, or starts a second one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from control import ENDS_WITH_ITS_PARENT
from kube import CommandFailedError
from places import only_telling

PARENT = f"""
import subprocess, sys
child = subprocess.Popen([*{ENDS_WITH_ITS_PARENT!r}, "sleep", "1000"])
print(child.pid, flush=True)
child.wait()
"""


def test_what_a_killed_demo_has_started_ends_with_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: command_of(child).startswith("sleep"))
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not command_of(child))


def command_of(pid: int) -> str:
    """Empty when it is gone, or a zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_until(found: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)  # a pause between looks


def test_a_second_demo_on_a_cluster_is_told_who_is_first_and_one_elsewhere_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    with only_telling(None):
        with pytest.raises(CommandFailedError, match=f"process {os.getpid()}"), only_telling(None):
            pass
        with only_telling(tmp_path / "kubeconfig"):
            pass
    with only_telling(None):
        pass
