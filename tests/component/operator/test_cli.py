"""What a user reads who starts the operator wrongly."""

import os
import subprocess
import sys
from pathlib import Path

from operatorrig import ROOT


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
