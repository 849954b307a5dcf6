"""kill -9 of each process that the story needs, on the local cluster.

Kubelet, containerd and the API server are started again by the cluster's supervisor, as systemd
would; operator, plugin and session by the kubelet or by the operator.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from localcluster import node
from localcluster.paths import NAME

_OURS: Final = f"/{NAME}/"
"""In the arguments of what this cluster runs outside of its pods, and in the cgroups of what runs
in them: other tests run an operator, or an API server, at the same time.
"""

_PROGRAMS: Final[dict[str, Callable[[str], bool]]] = {
    "apiserver": lambda line: "/kube-apiserver --" in line,
    "kubelet": lambda line: "/kubelet --" in line,
    "containerd": lambda line: line.startswith("containerd --config"),
    "operator": lambda line: "sojourn-operator run" in line or "sojourn_operator run" in line,
    "deviceplugin": lambda line: (
        "sojourn-deviceplugin run" in line or "sojourn_deviceplugin run" in line
    ),
}
NAMES: Final = tuple(_PROGRAMS)


def kill(name: str) -> int:
    """Kill -9 every process of that kind at once; how many there were."""
    pids = [process.pid for process in _found(_PROGRAMS[name])]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def kill_session(session: str) -> int:
    """Kill -9 a session's runtime process, and nothing else."""
    wanted = f"SOJOURN_SESSION={session}\0".encode()
    pids = [
        process.pid
        for process in _found(lambda line: "sojourn-runtime" in line or "sojourn_runtime" in line)
        if wanted in _environment(process.pid)
    ]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def cut_power(node_name: str) -> None:
    """End all of a node at once: no pod, kubelet or plugin of it can say a word more."""
    node.kill(node_name)


def give_power(node_name: str) -> None:
    """Boot it again, with the disk that it had."""
    node.restart(node_name)


def _found(wanted: Callable[[str], bool]) -> list[psutil.Process]:
    """Processes of this cluster."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if wanted(line) and (_OURS in line or _OURS in _cgroups(process.pid)):
            found.append(process)
    return found


def _cgroups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
