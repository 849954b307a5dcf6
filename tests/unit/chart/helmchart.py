"""The chart as Helm renders it: objects by kind and name, for any values.

It needs the helm binary that the local cluster builds (or one on PATH), but no cluster.
"""

import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster import binaries

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "sojourn"
NAMESPACE = "sojourn-system"

Rendered = Mapping[tuple[str, str], dict[str, Any]]


@cache
def helm_path() -> str:
    built = binaries.path_of("helm")
    found = str(built) if built.exists() else shutil.which("helm")
    if not found:
        pytest.skip(
            "helm is not built yet: run `python3 tests/cluster/cluster.py helm version` once"
        )
    return found


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm_path(), *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def render(*settings: str, values: Path | None = None) -> Rendered:
    """`helm template`; a setting is `path=JSON`."""
    options = [part for setting in settings for part in ("--set-json", setting)]
    if values:
        options += ["--values", str(values)]
    done = helm("template", "sojourn", str(CHART), "--namespace", NAMESPACE, *options)
    assert done.returncode == 0, done.stderr
    return {
        (raw["kind"], raw["metadata"]["name"]): raw
        for raw in yaml.safe_load_all(done.stdout)
        if raw
    }


def refusal(setting: str) -> str:
    """What helm says to a wrong setting."""
    done = helm("template", "sojourn", str(CHART), "--set-json", setting)
    assert done.returncode != 0, f"{setting} was accepted"
    return done.stderr


def pod_of(rendered: Rendered, kind: str, name: str) -> dict[str, Any]:
    """The pod's spec of a workload."""
    spec: dict[str, Any] = rendered[kind, name]["spec"]["template"]["spec"]
    return spec
