"""The toy session for fast tests; `real` starts processes over a real model."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from localcluster.models import fetch
from sessionrig import Rig

NewRig = Callable[..., Rig]


@pytest.fixture
def new_rig(tmp_path: Path) -> Iterator[NewRig]:
    """Makes rigs over the test's folder; their sessions are paused at the end."""
    made: list[Rig] = []

    def make(folder: Path = tmp_path / "store", **settings: Any) -> Rig:
        made.append(Rig(folder, **settings))
        return made[-1]

    yield make
    for rig in made:
        if hasattr(rig, "session") and rig.ending is None:
            rig.pause()


@pytest.fixture(scope="session")
def model() -> Path:
    """SmolLM2-135M, fetched once."""
    return fetch()
