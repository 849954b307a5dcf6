"""The cgroups under which the nodes' pods run, in every controller of cgroup v1.

The kubelet wants its root to exist beforehand; nothing else of the cluster touches the host's
groups.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from localcluster.paths import NAME
from localcluster.processes import wait_until

HIERARCHIES = Path("/sys/fs/cgroup")
NEEDED_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids")


def _roots() -> Iterator[Path]:
    return (folder for folder in sorted(HIERARCHIES.iterdir()) if folder.is_dir())


def root_of(node_name: str) -> str:
    return f"/{NAME}/{node_name}"


def create(node_name: str) -> None:
    for hierarchy in _roots():
        folder = hierarchy
        for part in Path(root_of(node_name)).parts[1:]:
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for inherited in ("cpuset.cpus", "cpuset.mems"):
                # A new cpuset group is empty, and no process can join it until both are set.
                if (folder / inherited).exists() and (parent / inherited).exists():
                    (folder / inherited).write_text((parent / inherited).read_text())


def exist() -> bool:
    return any((hierarchy / NAME).exists() for hierarchy in _roots())


def delete() -> None:
    """The kernel empties a group a moment after its last process has ended, so this may retry."""
    wait_until(_all_deleted, what=f"the cgroups {NAME} to be empty", seconds=10)


def _all_deleted() -> bool:
    for hierarchy in _roots():
        for folder, _, _ in os.walk(hierarchy / NAME, topdown=False):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # still busy
                return False
    return True
