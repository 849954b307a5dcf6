"""Fixtures for every test that needs a Kubernetes API or the whole cluster.

`control_plane`: etcd and kube-apiserver alone, fresh for each test file: nothing that another one
left, a finalizer say, is in its way. `cluster`: two nodes; one that runs already is used, and left
running. Neither builds binaries: that takes minutes, and a test's time is limited.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from localcluster import binaries, loopback
from localcluster.lifecycle import Cluster, is_running
from localcluster.paths import CLUSTER_FOLDER

_PROGRAM = CLUSTER_FOLDER / "cluster.py"


def _require(*names: str) -> None:
    unbuilt = binaries.missing(names)
    if unbuilt:
        pytest.fail(
            f"not built yet: {', '.join(unbuilt)}; run `python3 {_PROGRAM} build` once",
            pytrace=False,
        )


@pytest.fixture(scope="module")
def control_plane() -> Iterator[loopback.Api]:
    """A fresh API server on loopback, without nodes."""
    _require("etcd", "kube-apiserver", "kubectl")
    with loopback.control_plane() as api:
        yield api


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The whole cluster, two nodes Ready."""
    _require(*(name for name in binaries.BINARIES if name not in binaries.OPTIONAL))
    found = is_running()
    if not found:
        done = subprocess.run([sys.executable, str(_PROGRAM), "up"], check=False)
        if done.returncode != 0:
            pytest.fail("`cluster.py up` failed: read its messages above", pytrace=False)
    yield Cluster(ours=not found)
    if not found:
        subprocess.run([sys.executable, str(_PROGRAM), "down"], check=True)
