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


@dataclass(frozen=True, slots=True)
class Uses:
    """Memory on one GPU by pod UID; `foreign` is that of processes of no pod with a grant."""

    by_pod: Mapping[str, int]
    foreign: int
    strangers: tuple[ProcessUse, ...]


def uses(
    processes: Iterable[ProcessUse], *, pods: Mapping[int, str], holders: Iterable[str]
) -> Uses:
    """Sum up. `pods`: pod UID by process id; `holders`: UIDs of pods with a grant on this GPU."""
    ours = set(holders)
    by_pod: dict[str, int] = {}
    strangers = []
    for process in processes:
        uid = pods.get(process.pid, "")
        if uid in ours:
            by_pod[uid] = by_pod.get(uid, 0) + process.bytes
        else:
            strangers.append(process)
    return Uses(
        by_pod=by_pod,
        foreign=sum(process.bytes for process in strangers),
        strangers=tuple(strangers),
    )
