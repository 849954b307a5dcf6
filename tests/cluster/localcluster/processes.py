"""Background processes that outlive the command that started them, known by pid and start time.

A pid alone is not proof: after a reboot or a long run it may belong to somebody else.
What is started, and in which namespaces, belongs to `controlplane`, `node` and `forward`.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.paths import LOGS, STATE

_RECORDS = STATE / "processes"


class ProcessError(Exception):
    """A process did not start, stop or become ready in time; the text names its log."""


@dataclass(frozen=True, slots=True)
class Process:
    """`started` is in clock ticks since boot, as the kernel says in /proc/PID/stat."""

    name: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return _started(self.pid) == self.started


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold blanks, so fields are counted after it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def look_up(name: str, pid: int) -> Process | None:
    """The process that has this pid now."""
    started = _started(pid)
    return None if started is None else Process(name, pid, started)


def log_of(name: str) -> Path:
    return LOGS / f"{name}.log"


def start(name: str, command: Sequence[str]) -> Process:
    """Start detached from this terminal, log to a file, and record who it is."""
    LOGS.mkdir(parents=True, exist_ok=True)
    _RECORDS.mkdir(parents=True, exist_ok=True)
    with log_of(name).open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    # This command ends before the child does: nobody here waits for it, and init reaps it.
    child.returncode = 0
    process = look_up(name, child.pid)
    if process is None:
        raise ProcessError(f"{name} ended at once: read {log_of(name)}")
    record = {"pid": process.pid, "started": process.started}
    (_RECORDS / f"{name}.json").write_text(json.dumps(record))
    return process


def recorded() -> list[Process]:
    """All that were started and not forgotten, dead ones included."""
    if not _RECORDS.exists():
        return []
    found = []
    for file in sorted(_RECORDS.glob("*.json")):
        record = json.loads(file.read_text())
        found.append(Process(file.stem, record["pid"], record["started"]))
    return found


def find(name: str) -> Process | None:
    return next((process for process in recorded() if process.name == name), None)


def inside(network_namespace: Path) -> list[Process]:
    """Those who are in it, recorded or not. Nobody but the cluster has a reason to be."""
    if not network_namespace.exists():
        return []
    wanted = network_namespace.stat().st_ino
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            here = (entry / "ns" / "net").stat().st_ino
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # gone, or not root's to see
        process = look_up(f"process {entry.name}", int(entry.name))
        if here == wanted and process is not None:
            found.append(process)
    return found


def kill(processes: Sequence[Process], *, seconds: float = 20) -> None:
    """Kill and wait. A namespace's first process ends only after all others in it have."""
    for process in processes:
        if process.alive:
            os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        wait_until(
            lambda process=process: not process.alive,  # type: ignore[misc]
            what=f"the end of {process.name} (pid {process.pid})",
            seconds=seconds,
        )


def only_child(process: Process) -> int | None:
    """The first process of the namespace that `unshare --fork` made."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        pids = children.read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(pids[0]) if pids else None


def wait_until(condition: Callable[[], object], *, what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ProcessError(f"waited {seconds:.0f} s for {what}: read the logs in {LOGS}")
        time.sleep(0.05)
