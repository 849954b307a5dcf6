"""What a user reads who starts the operator wrongly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from operatorrig import ROOT, Rig


def operator(*arguments: str, kubeconfig: str = "/nowhere") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator"))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "KUBECONFIG": kubeconfig, "HOME": "/"}
    command = [sys.executable, "-W", "error", "-m", "sojourn_operator", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_without_a_cluster_it_says_how_to_reach_one() -> None:
    done = operator("run", "--port", "0")
    assert done.returncode == 2
    assert "set KUBECONFIG" in done.stderr
    assert "Traceback" not in done.stderr


ASKING = [("explain", "a/b"), ("simulate", "--live"), ("release",), ("apply-crds", "--from", "/")]
AWAY = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.mark.parametrize("arguments", ASKING, ids=lambda one: one[0])
def test_an_api_server_that_is_away_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(AWAY)
    done = operator(*arguments, kubeconfig=str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sojourn-operator: the API server http://127.0.0.1:9: no answer")
    assert done.stderr.count("\n") == 1
    assert "KUBECONFIG" in done.stderr


@pytest.mark.parametrize("content", ["a: [", "clusters: 3", "current-context: none", ""])
def test_a_kubeconfig_that_is_spoilt_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    done = operator("explain", "a/b", kubeconfig=str(path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"kubeconfig {path}: " in done.stderr


def test_a_kubeconfig_that_is_no_file_is_one_line(tmp_path: Path) -> None:
    for path in ("/nope", str(tmp_path)):
        done = operator("explain", "a/b", kubeconfig=path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert f"kubeconfig {path}: " in done.stderr


def test_a_mistake_in_the_settings_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("statusPollSecond: 5\n")
    done = operator("run", "--config", str(path))
    assert done.returncode == 2
    assert f"{path}: unknown key 'statusPollSecond'" in done.stderr


def test_help_names_every_command() -> None:
    done = operator("--help")
    assert done.returncode == 0
    for command in ("run", "apply-crds", "release", "explain", "simulate", "compare"):
        assert command in done.stdout


@pytest.mark.cluster
def test_explain_and_simulate_answer_from_the_state_of_a_living_cluster(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    replica = rig.operate()
    rig.create("chat", resources={"slices": 60, "share": 100})
    rig.until_ready("chat")
    rig.create("wide", resources={"slices": 70, "share": 100})
    rig.until("wide", "Ready", "False", "WaitingForRoom")
    replica.stop()
    kubeconfig = str(rig.control_plane.kubeconfig)
    told = operator("explain", "team/wide", "--json", kubeconfig=kubeconfig)
    assert told.returncode == 0, told.stderr
    (line,) = json.loads(told.stdout)["lines"]
    assert line["where"] == "node-a gpu-0"
    assert line["why"] == "20 slices free, needs 70 (team/chat may not be paused)"
    before = rig.writes()
    played = operator("simulate", "--live", "--until", "100", "--json", kubeconfig=kubeconfig)
    assert played.returncode == 0, played.stderr
    found = json.loads(played.stdout)
    first = found["samples"][0]
    assert (first["running"], first["waiting"], first["fill"]["slices"]) == (1, 1, 75.0)
    assert found["sessions"]["team/wide"]["last"].startswith("needs 70 slices on one GPU")
    assert rig.writes() == before, "a question writes nothing"
