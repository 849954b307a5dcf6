"""Whose memory is whose on a GPU, where the plugin may see the host's processes (`hostProc`).

Pure parsing and sums; `cgroup_of` alone reads /proc. Without the host's process ids nothing here is
used, and only what exceeds all grants together can be called foreign.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sojourn_deviceplugin.facts import ProcessUse

_POD: Final = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})"
)


def pod_uid(cgroup: str) -> str:
    """UID of the pod that a cgroup belongs to, empty for none.

    The cgroupfs driver writes it with dashes, systemd's with underscores.
    """
    found = _POD.search(cgroup)
    return found[1].replace("_", "-") if found else ""


def cgroup_of(pid: int, *, proc: Path) -> str:
    """A process's cgroups, empty if it has ended."""
    try:
        return (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""


def of_pods(
    processes: Iterable[ProcessUse], *, pods: Mapping[int, str]
) -> dict[str, list[ProcessUse]]:
    """A GPU's processes by pod UID; those of no pod are under the empty one."""
    found: dict[str, list[ProcessUse]] = {}
    for process in processes:
        found.setdefault(pods.get(process.pid, ""), []).append(process)
    return found


@dataclass(frozen=True, slots=True)
class Uses:
    """What processes of no pod with a grant use of a GPU."""

    foreign: int
    strangers: tuple[ProcessUse, ...]


def uses(
    processes: Iterable[ProcessUse], *, pods: Mapping[int, str], holders: Iterable[str]
) -> Uses:
    """Sum up. `pods`: pod UID by process id; `holders`: UIDs of pods with a grant on this GPU."""
    ours = set(holders)
    strangers = tuple(process for process in processes if pods.get(process.pid, "") not in ours)
    return Uses(foreign=sum(process.bytes for process in strangers), strangers=strangers)
