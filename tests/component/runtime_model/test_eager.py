"""The eager class computes the same model, close to the exact kernels but not bit for bit."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Runner, Segment, StopFlag
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import Weights

pytestmark = pytest.mark.torch
TEXT = "The quick brown fox jumps over the lazy dog, and the capital of Japan is called Tokyo. " * 4


@pytest.fixture(params=["eager", pytest.param("cuda-eager", marks=pytest.mark.gpu)])
def eager(request: pytest.FixtureRequest, smollm2: Weights) -> Runner:
    pytest.importorskip("torch")
    return make_runner(smollm2, device=request.param, num_blocks=8, threads=1)


def forward(runner: Runner, *segments: Segment) -> npt.NDArray[np.float32]:
    logits = runner.forward(segments)
    assert not isinstance(logits, Interrupted)
    return logits


def divergence(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Mean KL of two rows of logits, teacher-forced."""
    first, second = (x - x.max(-1, keepdims=True) for x in (one, other))
    first, second = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (first, second))
    return float((np.exp(first) * (first - second)).sum(-1).mean())


def test_its_distributions_are_close_to_the_exact_ones(
    eager: Runner, new_runner: Callable[..., CpuRunner], tokenizer: Tokenizer
) -> None:
    segment = Segment(tokenizer.encode(TEXT), 0, (3, 1), "all")
    exact, weak = forward(new_runner(), segment), forward(eager, segment)
    assert divergence(exact, weak) < 0.02
    assert (exact.argmax(-1) == weak.argmax(-1)).mean() > 0.9


def test_it_is_another_class(eager: Runner, new_runner: Callable[..., CpuRunner]) -> None:
    assert eager.kernel_class.startswith("eager-torch-bf16-")
    assert not eager.row_exact
    assert eager.kernel_class != new_runner().kernel_class


def test_decode_goes_on_where_prefill_ended(eager: Runner, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(TEXT)[:66]
    whole = forward(eager, Segment(tokens, 0, (0, 1), "all"))
    forward(eager, Segment(tokens[:63], 0, (4, 2), "none"))
    steps = [
        forward(eager, Segment(tokens[position : position + 1], position, (4, 2)))
        for position in range(63, 66)
    ]
    assert divergence(whole[63:], np.concatenate(steps)) < 0.02


def test_a_copied_block_serves_another_sequence(eager: Runner, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(TEXT)[:64]
    forward(eager, Segment(tokens, 0, (0,), "none"))
    expected = forward(eager, Segment([5], 64, (0, 1)))
    eager.kv[6] = eager.kv[0]
    assert forward(eager, Segment([5], 64, (6, 2))).tobytes() == expected.tobytes()


def test_it_stops_on_request(eager: Runner) -> None:
    answers = iter([False, True])
    stop = StopFlag(lambda: next(answers))
    assert eager.forward([Segment([1, 2, 3], 0, (0,))], stop=stop) is INTERRUPTED
