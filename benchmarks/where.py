"""Commit and machine, without which a figure says nothing."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def commit() -> str:
    """Short hash of the checkout; empty where git does not tell."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def processor() -> str:
    """The model as /proc/cpuinfo names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def machine() -> str:
    """Cores, architecture and kernel in one line."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"


def where() -> dict[str, Any]:
    """All of it, and the load at this moment."""
    return {
        "commit": commit(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "system": platform.platform(),
    }
