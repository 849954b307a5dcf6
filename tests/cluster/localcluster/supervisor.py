"""The first process of a namespace: makes its mounts, keeps its programs running, reaps orphans.

When it is killed, the kernel ends everything in its pid namespace and drops its mounts: nothing
can be left over. Run as a script with one argument, the specification as JSON.
What the programs are belongs to `controlplane` and `node`.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

# As systemd would: long enough not to burn a core, short enough for tests that restart a kubelet.
_RESTART_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Program:
    """One command, started once `after` holds: `tcp:HOST:PORT`, `unix:PATH` or `file:PATH`."""

    name: str
    command: Sequence[str]
    log: str
    after: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bind:
    """`source` appears at `target`, in this mount namespace alone."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Specification:
    programs: Sequence[Program]
    binds: Sequence[Bind] = ()

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> "Specification":
        content = json.loads(path.read_text())
        return cls(
            [Program(**program) for program in content["programs"]],
            [Bind(**bind) for bind in content["binds"]],
        )


def namespace_command(network: Path, specification: Path) -> list[str]:
    """How to start this module as the first process of new pid and mount namespaces.

    `nsenter --net`, not `ip netns exec`: that one mounts a fresh /sys and hides the cgroup mounts.
    """
    return [
        *("nsenter", f"--net={network}"),
        *("unshare", "--mount", "--propagation", "private"),
        *("--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"),
        *(sys.executable, str(Path(__file__).resolve()), str(specification)),
    ]


def _bind(bind: Bind) -> None:
    subprocess.run(["mount", "--bind", bind.source, bind.target], check=True)
    if bind.read_only:
        subprocess.run(["mount", "-o", "remount,bind,ro", bind.target], check=True)


def _holds(condition: str) -> bool:
    kind, _, value = condition.partition(":")
    match kind:
        case "":
            return True
        case "file":
            return Path(value).exists()
        case "unix":
            return _connects(socket.AF_UNIX, value)
        case "tcp":
            host, _, port = value.rpartition(":")
            return _connects(socket.AF_INET, (host, int(port)))
        case _:
            raise ValueError(f"condition {condition!r}: use tcp:, unix: or file:")


def _connects(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


def _start(program: Program) -> int:
    with Path(program.log).open("ab") as log:
        child = subprocess.Popen(
            program.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | program.environment,
            cwd="/",
        )
    child.returncode = 0  # reaped below, with the orphans of the namespace
    print(f"started {program.name} (pid {child.pid})", flush=True)
    return child.pid


def _reap() -> list[int]:
    ended: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append(pid)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _wake_on_ended_children() -> int:
    """A pipe that becomes readable. Blocking SIGCHLD instead would be inherited by every pod."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    return readable


def _supervise(programs: Sequence[Program], *, ended_children: int) -> None:
    """Level-triggered: look at who should run and does not, start it when its time has come."""
    running: dict[int, Program] = {}
    due = dict.fromkeys((program.name for program in programs), 0.0)
    while True:
        for pid in _reap():
            program = running.pop(pid, None)
            if program is not None:
                print(f"{program.name} (pid {pid}) ended: read {program.log}", flush=True)
                due[program.name] = time.monotonic() + _RESTART_SECONDS
        present = {program.name for program in running.values()}
        waiting = [program for program in programs if program.name not in present]
        for program in waiting:
            if time.monotonic() >= due[program.name] and _holds(program.after):
                running[_start(program)] = program
        # The end of a child wakes it early; the time bounds how late an `after` is seen.
        if select.select([ended_children], [], [], 0.1 if waiting else 5.0)[0]:
            os.read(ended_children, 4096)


def main() -> None:
    specification = Specification.read(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, _stop)
    ended_children = _wake_on_ended_children()
    for bind in specification.binds:
        _bind(bind)
    # Pods that ask for mount propagation need shared mounts; they are shared with nobody outside.
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    _supervise(specification.programs, ended_children=ended_children)


if __name__ == "__main__":
    main()
