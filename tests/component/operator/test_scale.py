"""The scale benchmark in small: the counts of writes hold whatever the size, and nothing is timed.

kube-scheduler binds the pods and kwok runs them.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from localcluster import binaries
from sojourn_api.names import MANAGER_OPERATOR

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).resolve().parents[3] / "benchmarks" / "scale.py"
SESSIONS = 200


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run: 200 sessions created at full speed on 50 nodes, and a restart."""
    needed = ["etcd", "kube-apiserver", "kube-scheduler", "kubectl", "kwok", "helm"]
    unbuilt = binaries.missing(needed)
    if unbuilt:
        build = "run `python3 tests/cluster/cluster.py build` once"
        pytest.fail(f"not built yet: {', '.join(unbuilt)}; {build}", pytrace=False)
    out = tmp_path_factory.mktemp("scale") / "report.json"
    sizes = ["--nodes", "50", "--sessions", str(SESSIONS)]
    command = [sys.executable, str(PROGRAM), *sizes, "--no-peer", "--quick", "--out", str(out)]
    subprocess.run(command, check=True, timeout=240)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_every_session_is_placed_once_and_serves(report: dict[str, Any]) -> None:
    ours = report["ours"]
    assert ours["placed"] == SESSIONS
    assert ours["serving"] == SESSIONS
    assert ours["unplaced"] == 0
    assert ours["duplicatePods"] == 0


def test_a_session_costs_few_writes(report: dict[str, Any]) -> None:
    assert report["ours"]["writesPerSession"] <= 5
    assert report["ours"]["writesUntilServing"] <= 7
    assert report["ours"]["api"]["refused"].get(MANAGER_OPERATOR, {}) == {}


def test_a_restart_writes_nothing_for_sessions_that_serve(report: dict[str, Any]) -> None:
    again = report["restart"]
    assert again["otherWrites"] == {}
    assert again["serving"] == SESSIONS + 1
    assert again["unplaced"] == 0
    assert again["duplicatePods"] == 0
