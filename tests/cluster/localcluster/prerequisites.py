"""What this machine needs before a cluster can start, checked all at once, each with the next step.

Only looks; installs nothing.
"""

import os
import shutil
from dataclasses import dataclass

from localcluster import binaries
from localcluster.cgroups import HIERARCHIES, NEEDED_CONTROLLERS
from localcluster.nodeconfig import CNI_PLUGINS

# Program -> Debian package.
_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "openssl": "openssl",
    "debootstrap": "debootstrap",
    "gcc": "gcc libc6-dev",
}
_CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")


@dataclass(frozen=True, slots=True)
class Missing:
    what: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.what}\n    -> {self.next_step}"


def missing() -> list[Missing]:
    return [*_root(), *_programs(), *_cni(), *_controllers(), *_go()]


def _root() -> list[Missing]:
    if os.geteuid() == 0:
        return []
    return [Missing("not root: namespaces, mounts and cgroups need it", "run it with sudo")]


def _programs() -> list[Missing]:
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    packages = sorted({_PROGRAMS[name] for name in absent})
    if not absent:
        return []
    return [Missing(f"programs: {', '.join(absent)}", f"apt-get install {' '.join(packages)}")]


def _cni() -> list[Missing]:
    absent = [name for name in _CNI_PLUGINS if not (CNI_PLUGINS / name).exists()]
    if not absent:
        return []
    return [
        Missing(
            f"network plugins in {CNI_PLUGINS}: {', '.join(absent)}",
            "apt-get install containernetworking-plugins",
        )
    ]


def _controllers() -> list[Missing]:
    absent = [name for name in NEEDED_CONTROLLERS if not (HIERARCHIES / name).is_dir()]
    if not absent:
        return []
    return [
        Missing(
            f"cgroup v1 controllers in {HIERARCHIES}: {', '.join(absent)}",
            "boot with systemd.unified_cgroup_hierarchy=0 (this cluster is written for cgroup v1)",
        )
    ]


def _go() -> list[Missing]:
    needed = [name for name in binaries.BINARIES if name not in binaries.OPTIONAL]
    unbuilt = binaries.missing(needed)
    if not unbuilt or shutil.which("go"):
        return []
    return [
        Missing(
            f"Go, to build {', '.join(unbuilt)}",
            "install Go 1.26 or later, or point SOJOURN_CACHE to a folder that has them built",
        )
    ]
