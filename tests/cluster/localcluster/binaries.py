"""Kubernetes, etcd, helm, crictl and more, built from pinned Go modules into the cache, each once.

A binary's folder is named after its module's go.mod, go.sum and flags, so a changed pin never
meets an old binary. What runs them belongs to `controlplane` and `node`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localcluster.locks import exclusive
from localcluster.paths import CLUSTER_FOLDER, cache_folder

KUBERNETES_VERSION = "v1.34.4"
_STRIP = "-s -w"
_KUBERNETES_FLAGS = (
    f"{_STRIP} -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
    " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34"
)

# Without these helm takes every chart's kubeVersion to be checked against Kubernetes 1.20.
_HELM = "helm.sh/helm/v3"
_HELM_FLAGS = f"{_STRIP} -X {_HELM}/internal/version.version=v3.20.2" + "".join(
    f" -X {_HELM}/pkg/{package}.k8sVersionMajor=1 -X {_HELM}/pkg/{package}.k8sVersionMinor=34"
    for package in ("chartutil", "lint/rules")
)

# Debian's containerd is of before CDI.
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
CONTAINERD_VERSION = "1.7.35"
_CONTAINERD = "github.com/containerd/containerd"
_CONTAINERD_FLAGS = f"{_STRIP} -X {_CONTAINERD}/version.Version={CONTAINERD_VERSION}"


@dataclass(frozen=True, slots=True)
class Binary:
    """One program: its Go package, and the folder under go/ with the module that pins it."""

    name: str
    module: str
    package: str
    linker_flags: str = _STRIP
    tags: str = ""


def _containerd(name: str) -> Binary:
    # Its btrfs snapshots need C and a library's headers; no node here uses them.
    return Binary(name, "containerd", f"{_CONTAINERD}/cmd/{name}", _CONTAINERD_FLAGS, "no_btrfs")


def _kubernetes(name: str) -> Binary:
    return Binary(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_FLAGS)


# In the order of building: what the control plane alone needs comes first.
BINARIES = {
    binary.name: binary
    for binary in (
        Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kubectl"),
        _kubernetes("kubelet"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kube-proxy"),
        Binary("crictl", "crictl", "sigs.k8s.io/cri-tools/cmd/crictl"),
        Binary("helm", "helm", f"{_HELM}/cmd/helm", _HELM_FLAGS),
        Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        *map(_containerd, CONTAINERD),
    )
}


# kwok simulates many nodes; containerd is built for clusters that ask for it (see `paths`).
OPTIONAL = frozenset({"kwok", *CONTAINERD})


class BuildError(Exception):
    """A Go build failed; the text names the program and how to repeat the build by hand."""


def path_of(name: str) -> Path:
    """Where the program lies once it is built (it may not be yet)."""
    binary = BINARIES[name]
    folder = CLUSTER_FOLDER / "go" / binary.module
    pins = (folder / "go.mod").read_bytes() + (folder / "go.sum").read_bytes()
    flags = binary.linker_flags + binary.tags
    key = hashlib.sha256(pins + flags.encode()).hexdigest()[:16]
    return cache_folder() / "bin" / f"{binary.module}-{key}" / name


def missing(names: Iterable[str]) -> list[str]:
    return [name for name in names if not path_of(name).exists()]


def ensure(*names: str) -> dict[str, Path]:
    """Build what is missing, one program at a time, and return the path of each."""
    if missing(names):
        with exclusive("binaries"):  # two builds side by side would do the same work twice
            for name in missing(names):
                _build(BINARIES[name], path_of(name))
    return {name: path_of(name) for name in names}


def _build(binary: Binary, target: Path) -> None:
    """Into a temporary name first: an interrupted build leaves nothing that looks finished."""
    if shutil.which("go") is None:
        raise BuildError(
            f"{binary.name} is not in {target.parent} and Go is not installed to build it: "
            "install Go 1.26 or later, or point SOJOURN_CACHE to a folder that has it"
        )
    print(f"building {binary.name} ({binary.module}) ...", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.unfinished")
    command = [
        *("nice", "-n", "10", "go", "build", "-trimpath", "-buildvcs=false"),
        *("-tags", binary.tags, "-ldflags", binary.linker_flags),
        *("-o", str(unfinished), binary.package),
    ]
    folder = CLUSTER_FOLDER / "go" / binary.module
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=os.environ | {"CGO_ENABLED": "0"}, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"{binary.name} did not build: read the messages above, or run "
            f"`CGO_ENABLED=0 go build {binary.package}` in {folder}"
        )
    unfinished.replace(target)
    seconds = time.monotonic() - started
    print(f"built {binary.name} in {seconds:.0f} s", file=sys.stderr, flush=True)
