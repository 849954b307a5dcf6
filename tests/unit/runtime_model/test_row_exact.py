"""The KV and the logits of a position do not depend on chunks, neighbours, threads, variant or
place: in every kernel class, with windows and with experts.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.quantization import Kind, Plan
from sojourn_runtime.model.weights import Weights, open_weights

from tests.unit.processors import variants

NewRunner = Callable[..., CpuRunner]
LENGTH = 300
BLOCKS = (7, 3, 11, 0, 5)
TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, 301, LENGTH)]
PLANS = {
    **{kind.value: Plan(kind) for kind in Kind},
    "mixed": Plan(
        Kind.W8A8,
        {"0.down": Kind.BF16, "1.qkv": Kind.W8A16, "2.gate_up": Kind.W8A16, "head": Kind.BF16}
        | {"3.attention_out": Kind.BF16, "4.gate_up": Kind.BF16, "5.down": Kind.W8A16},
    ),
}


MISTRAL = {"architectures": ["MistralForCausalLM"], "sliding_window": 50}
QWEN2_WINDOW = {
    "architectures": ["Qwen2ForCausalLM"],
    "use_sliding_window": True,
    "sliding_window": 130,
    "max_window_layers": 3,
}
QWEN2_MOE = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 96,
}
OLMOE = {"architectures": ["OlmoeForCausalLM"], "num_experts": 33, "num_experts_per_tok": 8}
MODELS: dict[str, tuple[dict[str, Any], Plan]] = {
    **{name: ({}, plan) for name, plan in PLANS.items()},
    "window": (MISTRAL, PLANS["bf16"]),
    "some-windows-w8a8": (QWEN2_WINDOW, PLANS["w8a8"]),
    "experts": (QWEN2_MOE, PLANS["bf16"]),
    "many-experts": (OLMOE, PLANS["bf16"]),
}


BITS = {
    "window": "6dfe982e4af929c3baad25569a3e45758c36210de8fdc4484f527f0e98c622cb",
    "some-windows-w8a8": "62ce92ccd2ba5831e376da5642888c0e255e5e8a52ced6dc52aa29e16c4138e7",
    "experts": "432e2590141b494fc8041410c82684366c8b324c6ffb41299c4e1ed2039f70ac",
    "many-experts": "19c0178119baa1f960f883e21d76db9eb2af7a6bf3b2fa39d794bbc1eef163eb",
}
"""What the kernel classes promise of windows and experts: the digest of logits and KV. New bits are
a new class.
"""


@pytest.fixture(scope="module", params=MODELS)
def weights(
    request: pytest.FixtureRequest,
    write_model: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Weights:
    """A tiny model in each kernel class, and others with windows and experts."""
    changes, plan = MODELS[request.param]
    folder = tmp_path_factory.mktemp("model")
    write_model(folder / "model", **changes)
    return open_weights(str(folder / "model"), cache_dir=folder / "cache", plan=plan)


def forward(runner: CpuRunner, *segments: Segment) -> npt.NDArray[np.float32]:
    logits = runner.forward(segments)
    assert not isinstance(logits, Interrupted)
    return logits


def in_chunks(
    runner: CpuRunner, cuts: Sequence[int], blocks: Sequence[int] = BLOCKS
) -> npt.NDArray[np.float32]:
    """All logits of TOKENS, computed in chunks that end at `cuts`."""
    parts = [
        forward(runner, Segment(TOKENS[begin:end], begin, blocks, "all"))
        for begin, end in itertools.pairwise([0, *cuts, LENGTH])
    ]
    return np.concatenate(parts)


def kv_of(runner: CpuRunner, blocks: Sequence[int] = BLOCKS, length: int = LENGTH) -> bytes:
    """The bytes of the positions below `length`: keys lie by dimension, values by key."""
    config = runner.config
    shape = (len(blocks), config.layers, 2, config.kv_heads, -1)
    cache = runner.kv[list(blocks)].view(np.uint16).reshape(shape)
    tiles = (len(blocks), config.layers, config.kv_heads)
    keys = cache[:, :, 0].reshape(*tiles, config.head_dim, 64).swapaxes(-1, -2)
    values = cache[:, :, 1].reshape(*tiles, 64, config.head_dim)
    both = np.stack([keys, values]).transpose(1, 4, 0, 2, 3, 5)
    return both.reshape(len(blocks) * 64, -1)[:length].tobytes()


@pytest.fixture
def whole(new_runner: NewRunner) -> tuple[npt.NDArray[np.float32], bytes]:
    """Logits and KV of one pass over all tokens, on one thread."""
    runner = new_runner()
    logits = in_chunks(runner, [])
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1
    return logits, kv_of(runner)


Whole = tuple[npt.NDArray[np.float32], bytes]


def test_the_bits_are_those_of_the_kernel_class(
    request: pytest.FixtureRequest, whole: Whole
) -> None:
    name = request.node.callspec.params["weights"]
    digest = hashlib.sha256(whole[0].tobytes() + whole[1]).hexdigest()
    assert digest == BITS.get(name, digest)


@pytest.mark.parametrize(
    "cuts", [[37, 101], [100], [1, 2, 3], [64, 128, 192, 256], [63, 65], [299]]
)
def test_chunks_equal_one_pass(new_runner: NewRunner, whole: Whole, cuts: list[int]) -> None:
    runner = new_runner()
    assert in_chunks(runner, cuts).tobytes() == whole[0].tobytes()
    assert kv_of(runner) == whole[1]


def test_decode_equals_prefill(new_runner: NewRunner, whole: Whole) -> None:
    runner = new_runner()
    assert in_chunks(runner, range(1, LENGTH)).tobytes() == whole[0].tobytes()
    assert kv_of(runner) == whole[1]


def test_two_threads_equal_one(new_runner: NewRunner, whole: Whole) -> None:
    runner = new_runner(threads=2)
    assert in_chunks(runner, [50, 51]).tobytes() == whole[0].tobytes()
    assert kv_of(runner) == whole[1]


def test_more_threads_than_rows_and_panels_equal_one(new_runner: NewRunner, whole: Whole) -> None:
    runner = new_runner(threads=7)
    assert in_chunks(runner, [297, 298]).tobytes() == whole[0].tobytes()


@pytest.mark.parametrize("variant", variants("avxvnni", "avx512", "avx512vnni", "amx"))
@pytest.mark.parametrize("cuts", [[], [37, 101, 102]])
def test_every_variant_equals_avx2(new_runner: NewRunner, cuts: list[int], variant: str) -> None:
    plain, other = new_runner(variant="avx2"), new_runner(variant=variant)
    assert (plain.variant, other.variant) == ("avx2", variant)
    assert in_chunks(plain, cuts).tobytes() == in_chunks(other, cuts).tobytes()
    assert kv_of(plain) == kv_of(other)


def test_other_blocks_give_equal_bits(new_runner: NewRunner, whole: Whole) -> None:
    runner = new_runner()
    elsewhere = (30, 31, 2, 39, 8)
    assert in_chunks(runner, [150], elsewhere).tobytes() == whole[0].tobytes()
    assert kv_of(runner, elsewhere) == whole[1]


def test_stale_bytes_in_blocks_do_not_matter(new_runner: NewRunner, whole: Whole) -> None:
    runner = new_runner()
    runner.kv[:] = 0xFF  # every bf16 a NaN
    assert in_chunks(runner, [37, 38, 130]).tobytes() == whole[0].tobytes()


@pytest.mark.parametrize("size", [2, 8, 33])
def test_batched_decode_equals_alone(new_runner: NewRunner, size: int) -> None:
    """Sequences of different lengths, each in its own blocks, decoded together and one by one."""
    together, alone = new_runner(num_blocks=2 * size), new_runner(num_blocks=2 * size)
    segments = []
    for number in range(size):
        length = 1 + 3 * number % 120
        prompt = Segment(TOKENS[number : number + length], 0, (2 * number, 2 * number + 1), "none")
        forward(together, prompt)
        forward(alone, prompt)
        segments.append(Segment([TOKENS[number]], length, prompt.blocks))
    batched = forward(together, *segments)
    single = np.concatenate([forward(alone, segment) for segment in segments])
    assert batched.tobytes() == single.tobytes()
    assert together.kv.tobytes() == alone.kv.tobytes()


def test_prefill_beside_decode_equals_alone(new_runner: NewRunner) -> None:
    mixed, alone = new_runner(), new_runner()
    for runner in (mixed, alone):
        forward(runner, Segment(TOKENS[:70], 0, (0, 1), "none"))
    decode, prefill = Segment([5], 70, (0, 1)), Segment(TOKENS[100:190], 0, (2, 3), "all")
    both = forward(mixed, decode, prefill)
    apart = np.concatenate([forward(alone, prefill), forward(alone, decode)])
    assert both.tobytes() == np.concatenate([apart[-1:], apart[:-1]]).tobytes()


def test_a_shared_prefix_block_serves_two_sequences(new_runner: NewRunner) -> None:
    runner, alone = new_runner(), new_runner()
    forward(runner, Segment(TOKENS[:64], 0, (0,), "none"))
    first, second = Segment([1, 2], 64, (0, 1)), Segment([3], 64, (0, 2))
    logits = forward(runner, first, second)
    expected = [forward(alone, Segment([*TOKENS[:64], *tail], 0, (0, 1))) for tail in ([1, 2], [3])]
    assert logits.tobytes() == np.concatenate(expected).tobytes()


@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1), max_size=12))
def test_any_chunking_equals_one_pass(
    shared_runner: CpuRunner, expected: Whole, cuts: set[int]
) -> None:
    assert in_chunks(shared_runner, sorted(cuts)).tobytes() == expected[0].tobytes()
    assert kv_of(shared_runner) == expected[1]


@pytest.fixture(scope="module")
def shared_runner(weights: Weights) -> CpuRunner:
    return CpuRunner(weights, num_blocks=12, threads=1)


@pytest.fixture(scope="module")
def expected(shared_runner: CpuRunner) -> Whole:
    logits = in_chunks(shared_runner, [])
    return logits, kv_of(shared_runner)
