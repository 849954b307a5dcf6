"""Images made without a registry: layers built once, and pods that run our components."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from localcluster import layers, processes
from localcluster.images import COMPONENTS
from localcluster.lifecycle import Cluster
from localcluster.paths import CLUSTER_FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_NAMESPACE = "images-test"
_SAY_WHO_AND_RUN = "id -u; sojourn-{name} --help; exec python3 -m sojourn_{name} --help"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_equal_content_is_an_equal_layer_whatever_its_times() -> None:
    def fill(folder: Path, *, at: int) -> None:
        (folder / "file").write_text("same")
        os.utime(folder / "file", (at, at))

    first = layers.layer("x", "key-1", lambda folder: fill(folder, at=1000))
    second = layers.layer("x", "key-2", lambda folder: fill(folder, at=2000))
    assert first == second


@pytest.mark.usefixtures("cache")
def test_a_layer_is_built_once_for_a_key_and_again_when_it_was_removed() -> None:
    calls: list[Path] = []
    blob = layers.layer("x", "key", calls.append)
    assert layers.layer("x", "key", calls.append) == blob
    assert len(calls) == 1
    blob.path.unlink()
    assert layers.layer("x", "key", calls.append) == blob
    assert len(calls) == 2


def test_a_build_that_fails_leaves_nothing_behind(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        layers.layer("x", "key", fail)
    assert [path for path in (cache / "images").rglob("*") if path.is_file()] == []


def test_each_component_runs_from_its_image_as_its_user(cluster: Cluster) -> None:
    program = str(CLUSTER_FOLDER / "cluster.py")
    subprocess.run([sys.executable, program, "images"], check=True)
    pods = [_pod(name) for name in COMPONENTS]
    cluster.kubectl("create", "namespace", _NAMESPACE)
    try:
        processes.wait_until(
            lambda: "default" in cluster.kubectl("get", "serviceaccounts", f"-n={_NAMESPACE}"),
            what="the service account",
            seconds=20,
        )
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
        cluster.kubectl("apply", "-f", "-", stdin=everything)
        for name in COMPONENTS:
            done = ("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}")
            cluster.kubectl(*done, f"-n={_NAMESPACE}", "--timeout=60s")
            said = cluster.kubectl("logs", name, f"-n={_NAMESPACE}").splitlines()
            assert said[0] == ("0" if name == "deviceplugin" else "65532")
            assert sum(line.startswith("usage:") for line in said) == 2
    finally:
        cluster.kubectl("delete", "namespace", _NAMESPACE)


def _pod(component: str) -> dict[str, object]:
    container = {
        "name": "c",
        "image": f"sojourn/{component}:dev",
        "command": ["sh", "-e", "-c", _SAY_WHO_AND_RUN.format(name=component)],
        "securityContext": {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": component, "namespace": _NAMESPACE},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
