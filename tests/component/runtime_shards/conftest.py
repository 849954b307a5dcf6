"""Models over which two processes compute, and pods that start as two."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch (installed by `make torch`)")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime_session"))

from pods import Pod

from tests.unit.tiny_models import write_model

SECONDS = 180
"""Two processes import torch on a busy machine. A guess."""
NewPod = Callable[..., Pod]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three key heads, which two shards cannot halve; it never ends by itself."""
    changes = {"num_key_value_heads": 3, "eos_token_id": None}
    return write_model(tmp_path_factory.mktemp("model"), num_hidden_layers=4, **changes)


@pytest.fixture(scope="module")
def new_pod(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[NewPod]:
    """`new_pod(shards)`: on a store of its own, killed at the end."""
    made: list[Pod] = []

    def make(shards: int, *flags: str) -> Pod:
        folder = tmp_path_factory.mktemp("pod")
        made.append(Pod(model, folder, ("--shards", str(shards), *flags), seconds=SECONDS))
        return made[-1]

    yield make
    for pod in made:
        if pod.process is not None:
            pod.kill()
