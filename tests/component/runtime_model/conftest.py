"""The real small model: SmolLM2-135M-Instruct, fetched once per machine and converted once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from localcluster import models
from localcluster.paths import cache_folder
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights

CACHE = cache_folder() / "weights-cache"


@pytest.fixture(scope="session")
def model_file() -> Path:
    return models.fetch()


@pytest.fixture(scope="session")
def smollm2(model_file: Path) -> Weights:
    return open_weights(str(model_file), cache_dir=CACHE)


@pytest.fixture(scope="session")
def weights_cache(smollm2: Weights) -> Path:
    """A weights cache that holds the model."""
    assert smollm2
    return CACHE


@pytest.fixture(scope="session")
def tokenizer(smollm2: Weights) -> Tokenizer:
    return Tokenizer(smollm2)


@pytest.fixture
def new_runner(smollm2: Weights) -> Callable[..., CpuRunner]:
    def make(*, threads: int = 1, variant: str = "auto") -> CpuRunner:
        return CpuRunner(smollm2, num_blocks=24, threads=threads, variant=variant)

    return make
