"""What a cluster could leave on the host: processes, mounts, links, rules, cgroups, folders.

For the tests that compare before and after; names what is there, changes nothing.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcluster import forward, processes
from localcluster.cgroups import HIERARCHIES
from localcluster.paths import DATA, NAME, NETWORK_NAMESPACE, STATE
from localcluster.processes import Process

_FIXED_PATHS = (
    *("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/sojourn"),
    *("/var/log/pods", "/var/log/containers", "/run/containerd", "/run/sojourn", "/opt/sojourn"),
    *("/etc/cni", "/opt/cni", "/opt/containerd", "/usr/libexec/kubernetes", "/run/flannel"),
)


@dataclass(frozen=True, slots=True)
class Traces:
    mounts: frozenset[str]
    links: frozenset[str]
    rules: frozenset[str]
    cgroups: frozenset[str]
    folders: frozenset[str]


def of_host() -> Traces:
    mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    rules = _lines("iptables-save")
    groups = [path for root in HIERARCHIES.iterdir() for path in root.glob(f"{NAME}*")]
    folders = (STATE, DATA, NETWORK_NAMESPACE, *map(Path, _FIXED_PATHS))
    return Traces(
        mounts=frozenset(mounts),
        links=frozenset(line.split()[1] for line in _lines("ip", "-o", "link")),
        # Counters and times differ from one moment to the next.
        rules=frozenset(line for line in rules if not line.startswith(("#", ":"))),
        cgroups=frozenset(map(str, groups)),
        folders=frozenset(str(folder) for folder in folders if folder.exists()),
    )


def processes_of_cluster() -> list[Process]:
    """All of the running cluster: supervisors, what they run, shims, and the pods' own."""
    supervisors = [p for p in processes.recorded() if p.alive and p.name != forward.NAME]
    first = [processes.only_child(supervisor) for supervisor in supervisors]
    namespaces = {_pid_namespace(pid) for pid in first if pid is not None} - {None}
    found = [p for p in processes.recorded() if p.alive]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _pid_namespace(int(entry.name)) in namespaces:
            process = processes.look_up("of the cluster", int(entry.name))
            if process is not None:
                found.append(process)
    return found


def _pid_namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # gone, or somebody else's


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
