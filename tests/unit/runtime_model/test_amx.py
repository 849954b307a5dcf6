"""The kernel class of the matrix unit (AMX): row-exact, and FMAs give its bits without the unit."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.quality import divergence
from sojourn_runtime.model.quantization import Kind, kernel_class
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.weights import Weights

from tests.unit.processors import variants

TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, 301, 150)]
BLOCKS = (7, 3, 11)


@pytest.fixture(params=variants("auto", "avx512vnni", "avx2"))
def runner(request: pytest.FixtureRequest, weights: Weights) -> Iterator[CpuRunner]:
    """By each way that there is on this processor."""
    made = CpuRunner(weights, num_blocks=80, threads=1, variant=request.param, pairs=True)
    yield made
    made.close()


@pytest.fixture
def other(weights: Weights) -> Iterator[CpuRunner]:
    made = make_runner(weights, device="cpu-amx", num_blocks=80, threads=2)
    assert isinstance(made, CpuRunner)
    yield made
    made.close()


def forward(runner: CpuRunner, *segments: Segment) -> npt.NDArray[np.float32]:
    logits = runner.forward(segments)
    assert not isinstance(logits, Interrupted)
    return logits


def in_chunks(runner: CpuRunner, cuts: Sequence[int]) -> npt.NDArray[np.float32]:
    borders = itertools.pairwise([0, *cuts, len(TOKENS)])
    parts = [forward(runner, Segment(TOKENS[a:b], a, BLOCKS, "all")) for a, b in borders]
    return np.concatenate(parts)


@pytest.mark.parametrize("cuts", [[37, 101], [1, 2, 3, 20], [16, 32, 64], range(1, len(TOKENS))])
def test_chunks_and_decode_equal_one_pass(
    runner: CpuRunner, other: CpuRunner, cuts: Sequence[int]
) -> None:
    whole = in_chunks(runner, [])
    assert in_chunks(other, cuts).tobytes() == whole.tobytes()
    assert runner.kv[list(BLOCKS)].tobytes() == other.kv[list(BLOCKS)].tobytes()


@pytest.mark.parametrize("size", [2, 16, 17, 33])
def test_batched_decode_equals_alone(runner: CpuRunner, other: CpuRunner, size: int) -> None:
    steps = []
    for number in range(size):
        length, table = 1 + 3 * number % 60, (2 * number, 2 * number + 1)
        assert length < BLOCK_TOKENS
        prompt = Segment(TOKENS[number : number + length], 0, table, "none")
        forward(runner, prompt)
        forward(other, prompt)
        steps.append(Segment([TOKENS[number]], length, table))
    alone = np.concatenate([forward(other, step) for step in steps])
    assert forward(runner, *steps).tobytes() == alone.tobytes()


def test_it_is_as_close_as_roundings_are(runner: CpuRunner, weights: Weights) -> None:
    plain = CpuRunner(weights, num_blocks=12, threads=1)
    reference, found = in_chunks(plain, []), in_chunks(runner, [])
    plain.close()
    assert found.tobytes() != reference.tobytes()
    assert divergence(found, reference).mean() < 1e-4


def test_bits_of_its_own_have_a_name_of_their_own(runner: CpuRunner) -> None:
    assert runner.row_exact
    assert runner.kernel_class == "cpu-amx-bf16-v1"
    bytes_ = dict.fromkeys(["0.qkv", "head"], Kind.W8A8)
    assert kernel_class(bytes_, pairs=True) == kernel_class(bytes_) == "cpu-vnni-w8a8-v1"
    mixed = {**bytes_, "head": Kind.BF16}
    assert kernel_class(mixed, pairs=True) == kernel_class(mixed).replace("cpu-", "cpu-amx-")
