"""The gateway in this process over sessions that a test plays, and as a process over real ones."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime_session"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cluster"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "chart"))

from gatewayrig import Front, GatewayProcess, fronting
from localcluster.fixtures import control_plane
from localcluster.models import fetch
from pods import Pod

__all__ = ["control_plane"]


@pytest.fixture
def front() -> Callable[..., AbstractAsyncContextManager[Front]]:
    """A gateway in this process; settings as keywords."""
    return fronting


@pytest.fixture(scope="session")
def model() -> Path:
    """SmolLM2-135M, fetched once."""
    return fetch()


@pytest.fixture
def pod(tmp_path: Path, model: Path) -> Iterator[Pod]:
    """A session's process over the real model, not started yet."""
    folder = tmp_path / "pod"
    folder.mkdir()
    made = Pod(model, folder)
    yield made
    if made.process is not None:
        made.kill()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts the gateway as a process; its log must hold no error at the end."""
    made: list[GatewayProcess] = []

    def start(*flags: str, **env: Any) -> GatewayProcess:
        made.append(GatewayProcess(tmp_path / f"gateway-{len(made)}.log", flags, env))
        made[-1].until_listening()
        return made[-1]

    yield start
    for process in made:
        process.stop()
        assert "Traceback" not in process.text(), process.text()
