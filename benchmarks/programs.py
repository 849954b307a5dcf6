"""What the programs of a run cost: CPU by name, and memory. Read from /proc, nothing is started."""

import contextlib
import os
from pathlib import Path


def cpu_seconds() -> dict[str, float]:
    """Of this process and its children so far, by program."""
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            if os.getpid() in (int(fields[1]), int(folder.name)):
                used = (int(fields[11]) + int(fields[12])) / ticks
                label = _label(name, own=int(folder.name) == os.getpid())
                found[label] = found.get(label, 0.0) + used
    return found


def _label(name: str, *, own: bool) -> str:
    if name.startswith("python"):
        return "benchmark" if own else "operator"
    return name


def peak_mib(pid: int) -> float:
    """The most that was resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
