"""Where the story is told: the local cluster, started for it, or a cluster that is there already.

A place knows its kubeconfig, the chart's values for it, and how a namespace gets its volumes.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from kube import CommandFailedError, Kube
from localcluster import binaries, models
from localcluster.paths import CLUSTER_FOLDER, KUBECONFIG
from sojourn_api import names

_PROGRAM = CLUSTER_FOLDER / "cluster.py"
_MANIFESTS = CLUSTER_FOLDER / "manifests"


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster for the story. `weights` are the same file that the sessions serve."""

    kube: Kube
    values: Path
    weights: Path
    prepare_namespace: Callable[[str], None]


@contextmanager
def local_cluster(*, keep: bool) -> Iterator[Place]:
    """The local Kubernetes with our images; taken down at the end unless `keep`.

    One that runs already is used, and left running.
    """
    already = _is_up()
    _run("up")
    _run("images")
    kube = Kube(KUBECONFIG, str(binaries.path_of("kubectl")), str(binaries.path_of("helm")))

    def prepare_namespace(name: str) -> None:
        kube.apply(f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
        _run("storage", name)

    try:
        yield Place(kube, _MANIFESTS / "values.yaml", models.fetch(), prepare_namespace)
    finally:
        if keep or already:
            print("\nThe cluster is left up; `make cluster-down` takes it down.")
            print(f"export KUBECONFIG={KUBECONFIG}")
        else:
            _run("down")


@contextmanager
def own_cluster(kubeconfig: Path, *, values: Path | None) -> Iterator[Place]:
    """A cluster of the user's: nodes labelled `sojourn.dev/gpu=true`, images where it finds them.

    The claims `sojourn-store` and `sojourn-models` must be in the story's namespace, or be
    made by a default StorageClass.
    """
    kube = Kube(kubeconfig)
    if not kube.items("nodes", "-l", f"{names.LABEL_GPU_NODE}=true"):
        raise CommandFailedError(
            f"no node has the label {names.LABEL_GPU_NODE}=true: "
            f"run `kubectl label node NODE {names.LABEL_GPU_NODE}=true`"
        )

    def prepare_namespace(name: str) -> None:
        kube.apply(f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")

    yield Place(kube, values or _MANIFESTS / "values.yaml", models.fetch(), prepare_namespace)


def _is_up() -> bool:
    probe = [sys.executable, str(_PROGRAM), "status"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, str(_PROGRAM), *arguments], check=False)
    if done.returncode != 0:
        raise CommandFailedError(
            f"`cluster.py {' '.join(arguments)}` failed: read its messages above"
        )
