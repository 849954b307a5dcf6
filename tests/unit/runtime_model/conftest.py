"""The tiny model of `tiny_models`, written and opened."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.weights import Weights, open_weights

from tests.unit.tiny_models import CONFIG, as_stored, random_tensors, write_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def weights(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return open_weights(str(model_folder), cache_dir=tmp_path_factory.mktemp("cache"))


NewRunner = Callable[..., CpuRunner]


@pytest.fixture
def new_runner(weights: Weights) -> Iterator[NewRunner]:
    """Opens runners over the tiny model; one thread and forty blocks unless said otherwise."""
    opened: list[CpuRunner] = []

    def make(*, threads: int = 1, variant: str = "auto", num_blocks: int = 40) -> CpuRunner:
        opened.append(CpuRunner(weights, num_blocks=num_blocks, threads=threads, variant=variant))
        return opened[-1]

    yield make
    for runner in opened:
        runner.close()


@pytest.fixture(scope="session")
def tiny_tensors() -> dict[str, npt.NDArray[np.float32]]:
    """The weights of the tiny model."""
    return random_tensors(CONFIG)


@pytest.fixture(name="write_model", scope="session")
def write_model_fixture() -> Callable[..., Path]:
    """`write_model(folder, **changes to the config)` writes a Hugging Face folder."""
    return write_model


@pytest.fixture(scope="session")
def stored_tensors() -> Callable[..., dict[str, npt.NDArray[np.float32]]]:
    """As `random_tensors`, by the family's own names."""
    return lambda **changes: as_stored({**CONFIG, **changes}, random_tensors({**CONFIG, **changes}))


@pytest.fixture(name="random_tensors", scope="session")
def random_tensors_fixture() -> Callable[..., dict[str, npt.NDArray[np.float32]]]:
    """`random_tensors(**changes to the config)`: what `write_model` with the same changes wrote."""
    return lambda **changes: random_tensors({**CONFIG, **changes})
