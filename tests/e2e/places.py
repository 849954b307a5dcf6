"""Where the story is told: the local cluster, started for it, or a cluster that is there already.

A place knows its kubeconfig, the chart's values for it, and how a namespace gets its volumes.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from kube import CommandFailedError, Kube
from localcluster import binaries, models, prerequisites
from localcluster.locks import TakenError, alone
from localcluster.paths import CLUSTER_FOLDER, KUBECONFIG
from sojourn_api import names

_PROGRAM = CLUSTER_FOLDER / "cluster.py"
_MANIFESTS = CLUSTER_FOLDER / "manifests"
EXAMPLES_NAMESPACE = "chats"
"""Of the manifests in examples/: on a cluster that is kept, their claims have volumes."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster for the story. `weights` are the same file that the sessions serve."""

    kube: Kube
    values: Path
    weights: Path
    prepare_namespace: Callable[[str], None]


@contextmanager
def only_telling(kubeconfig: Path | None) -> Iterator[None]:
    """One on a cluster (None: the local one): two would clear each other's sessions away."""
    key = b"" if kubeconfig is None else bytes(kubeconfig.resolve())
    try:
        with alone(f"demo-{hashlib.sha256(key).hexdigest()[:16]}"):
            yield
    except TakenError as error:
        raise CommandFailedError(
            f"another demo runs on this cluster ({error}): wait for it, or end it"
        ) from error


@contextmanager
def local_cluster(*, keep: bool) -> Iterator[Place]:
    """The local Kubernetes with our images; taken down at the end unless `keep`.

    One that runs already is used, and left running.
    """
    if problems := prerequisites.missing():
        raise CommandFailedError("this machine lacks:\n" + "\n".join(map(str, problems)))
    tools = binaries.ensure("kubectl", "helm")  # a cluster does without Helm, the story does not
    already = _is_up()
    _run("up")
    _run("images")
    kube = Kube(KUBECONFIG, str(tools["kubectl"]), str(tools["helm"]))
    kube.kubectl(
        "uncordon", "--selector", "kubernetes.io/hostname"
    )  # a telling that was killed may have left one cordoned

    def prepare_namespace(name: str) -> None:
        kube.apply(f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
        _run("storage", name)

    if keep:
        prepare_namespace(EXAMPLES_NAMESPACE)
    try:
        yield Place(kube, _MANIFESTS / "values.yaml", models.fetch(), prepare_namespace)
    finally:
        if keep or already:
            print("\nThe cluster is left up; `make cluster-down` takes it down.")
            print(f"export KUBECONFIG={KUBECONFIG}")
        else:
            print("\ntaking the cluster down ...", flush=True)
            _run("down")


@contextmanager
def own_cluster(kubeconfig: Path, *, values: Path | None) -> Iterator[Place]:
    """A cluster of the user's: nodes labelled `sojourn.dev/gpu=true`, images where `values` say.

    Without `values`, those of the local cluster: simulated GPUs, and images that the nodes have.

    The claims `sojourn-store` and `sojourn-models` must be in the story's namespace, or be
    made by a default StorageClass.
    """
    if not kubeconfig.is_file():
        raise CommandFailedError(f"there is no file {kubeconfig}: name the cluster's kubeconfig")
    kube = Kube(kubeconfig, _tool("kubectl"), _tool("helm"))
    if not kube.items("nodes", "-l", f"{names.LABEL_GPU_NODE}=true"):
        raise CommandFailedError(
            f"no node has the label {names.LABEL_GPU_NODE}=true: "
            f"run `kubectl label node NODE {names.LABEL_GPU_NODE}=true`"
        )
    for node in kube.items("nodes"):
        if node["spec"].get("unschedulable"):
            name = node["metadata"]["name"]
            raise CommandFailedError(f"{name} is cordoned: run `kubectl uncordon {name}`")

    def prepare_namespace(name: str) -> None:
        kube.apply(f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")

    yield Place(kube, values or _MANIFESTS / "values.yaml", models.fetch(), prepare_namespace)


def _tool(name: str) -> str:
    """The user's own program, which knows their cluster; else the one pinned here."""
    return shutil.which(name) or str(binaries.ensure(name)[name])


def _is_up() -> bool:
    probe = [sys.executable, str(_PROGRAM), "status"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, str(_PROGRAM), *arguments], check=False)
    if done.returncode != 0:
        raise CommandFailedError(
            f"`cluster.py {' '.join(arguments)}` failed: read its messages above"
        )
