"""On CUDA too, logits and KV of a position depend on the tokens before it alone."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.packing import to_bf16
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Runner, Segment, StopFlag

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]  # an interpreter takes its time
NewRunner = Callable[..., Any]
Pass = tuple[npt.NDArray[np.float32], bytes]
BLOCKS = (7, 3)
LENGTH = 70


def forward(runner: Runner, *segments: Segment) -> npt.NDArray[np.float32]:
    logits = runner.forward(segments)
    assert not isinstance(logits, Interrupted)
    return logits


def in_chunks(
    runner: Runner,
    tokens: Sequence[int],
    cuts: Sequence[int],
    *,
    blocks: Sequence[int] = BLOCKS,
    begin: int = 0,
    length: int = LENGTH,
) -> npt.NDArray[np.float32]:
    """Logits from `begin` on, computed in chunks that end at `cuts`."""
    ends = [begin, *cuts, length]
    parts = [
        forward(runner, Segment(tokens[first:last], first, blocks, "all"))
        for first, last in itertools.pairwise(ends)
    ]
    return np.concatenate(parts)


def kv_of(runner: Runner, blocks: Sequence[int] = BLOCKS, length: int = LENGTH) -> bytes:
    """The KV of the positions below `length`."""
    config = runner.config
    shape = (-1, config.layers, 2, config.kv_heads, 64, config.head_dim)
    found = np.stack([runner.kv[block] for block in blocks]).view(np.uint16).reshape(shape)
    return found.transpose(0, 4, 1, 2, 3, 5).reshape(len(blocks) * 64, -1)[:length].tobytes()


def fill(blocks: Sequence[int], *runners: Runner) -> None:
    """Random KV, in all of them the same."""
    random = np.random.default_rng(2)
    for block in blocks:
        values = random.normal(size=runners[0].block_bytes // 2).astype(np.float32)
        for runner in runners:
            runner.kv[block] = to_bf16(values).view(np.uint8)


@pytest.fixture(scope="module")
def one_pass(new_runner: NewRunner, tokens: list[int]) -> Pass:
    """Logits and KV of all tokens at once, in two layers."""
    runner = new_runner(layers=2)
    logits = in_chunks(runner, tokens, [])
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1
    return logits, kv_of(runner)


@pytest.mark.parametrize("cuts", [[37], [63, 65, 69], [1, 2, 3, 64]])
def test_chunks_equal_one_pass(
    new_runner: NewRunner, tokens: list[int], one_pass: Pass, cuts: list[int]
) -> None:
    cut = new_runner(layers=2)
    assert in_chunks(cut, tokens, cuts).tobytes() == one_pass[0].tobytes()
    assert kv_of(cut) == one_pass[1]


@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128])
def test_decode_equals_prefill_for_every_head_size(
    new_runner: NewRunner, tokens: list[int], head_dim: int
) -> None:
    shape = {"head_dim": head_dim, "hidden": 80}
    whole, cut = new_runner(**shape), new_runner(**shape)
    fill(BLOCKS, whole, cut)
    expected = in_chunks(whole, tokens, [], begin=46, length=66)  # two tiles of attention
    stepped = in_chunks(cut, tokens, range(62, 66), begin=46, length=66)
    assert stepped.tobytes() == expected.tobytes()
    assert kv_of(cut, length=66) == kv_of(whole, length=66)


@pytest.mark.parametrize(
    "kin", [{"qkv_bias": True}, {"qk_norm": True}, {"heads": 4, "kv_heads": 2}]
)
def test_the_kin_is_row_exact_too(
    new_runner: NewRunner, tokens: list[int], kin: dict[str, Any]
) -> None:
    whole, cut = new_runner(**kin), new_runner(**kin)
    fill(BLOCKS, whole, cut)
    expected = in_chunks(whole, tokens, [], begin=33)  # two or three tiles
    assert in_chunks(cut, tokens, [50, 69], begin=33).tobytes() == expected.tobytes()


def test_a_position_behind_several_splits_does_not_depend_on_its_chunk(
    new_runner: NewRunner, tokens: list[int]
) -> None:
    """Position 512 has two splits, 511 one, in one tile of attention."""
    whole, cut = new_runner(num_blocks=9), new_runner(num_blocks=9)
    blocks = range(9)
    fill(blocks, whole, cut)
    expected = in_chunks(whole, tokens, [], blocks=blocks, begin=508, length=516)
    stepped = in_chunks(cut, tokens, [510, 511, 512, 513], blocks=blocks, begin=508, length=516)
    assert stepped.tobytes() == expected.tobytes()


def test_groups_of_a_small_workspace_change_nothing(
    new_runner: NewRunner, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sojourn_runtime.model.cuda import ops  # noqa: PLC0415 - imports torch

    whole, grouped = new_runner(), new_runner()
    fill(BLOCKS, whole, grouped)
    expected = in_chunks(whole, tokens, [], begin=46)
    monkeypatch.setattr(ops, "WORKSPACE_BYTES", 20 * 4 * 3 * 34)  # of 20 rows: a tile, then another
    assert in_chunks(grouped, tokens, [], begin=46).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [2, 8, 33])
def test_batched_decode_equals_alone(new_runner: NewRunner, tokens: list[int], size: int) -> None:
    """Sequences of different lengths over any KV, in batches that are filled up and alone."""
    together, alone = new_runner(num_blocks=2 * size), new_runner(num_blocks=2 * size)
    fill(range(2 * size), together, alone)
    steps = [Segment([tokens[n]], 1 + 3 * n % 67, (2 * n, 2 * n + 1)) for n in range(size)]
    batched = forward(together, *steps)
    some = sorted({0, 1, size // 2, size - 1})
    single = [forward(alone, steps[number]) for number in some]
    assert batched[some].tobytes() == np.concatenate(single).tobytes()
    for number in some:
        mine, length = steps[number].blocks, steps[number].start + 1
        assert kv_of(together, mine, length) == kv_of(alone, mine, length)


def test_prefill_beside_decode_equals_alone(new_runner: NewRunner, tokens: list[int]) -> None:
    mixed, alone = new_runner(), new_runner()
    fill((0, 1), mixed, alone)
    decode, prefill = Segment([5], 70, (0, 1)), Segment(tokens[100:170], 0, (2, 3), "all")
    both = forward(mixed, decode, prefill)
    apart = [forward(alone, decode), forward(alone, prefill)]
    assert both.tobytes() == np.concatenate(apart).tobytes()


def test_stale_bytes_in_blocks_do_not_matter(new_runner: NewRunner, tokens: list[int]) -> None:
    clean, stale = new_runner(), new_runner()
    fill(BLOCKS, clean, stale)
    for block, first in zip(BLOCKS, (46, 0), strict=True):
        kv = stale.kv[block].copy()
        kv.reshape(-1, 64, 2 * stale.config.head_dim)[:, first:] = 0xFF  # every bf16 a NaN
        stale.kv[block] = kv
    expected = in_chunks(clean, tokens, [], begin=46)
    assert in_chunks(stale, tokens, [69], begin=46).tobytes() == expected.tobytes()


def test_a_pass_stops_within_four_layers(new_runner: NewRunner) -> None:
    runner = new_runner(layers=6)
    for at in range(3):
        answers = iter([False] * at + [True])
        stop = StopFlag(lambda answers=answers: next(answers))  # type: ignore[misc]
        assert runner.forward([Segment([1, 2, 3], 0, (0,))], stop=stop) is INTERRUPTED
        assert next(answers, None) is None


def test_a_decode_step_that_shall_not_begin_does_not(new_runner: NewRunner) -> None:
    stop = StopFlag()
    stop.set()
    assert new_runner().forward([Segment([1], 0, (0,))], stop=stop) is INTERRUPTED


def test_the_class_is_named_and_exact(new_runner: NewRunner) -> None:
    runner = new_runner()
    assert runner.kernel_class.startswith("cuda-triton")
    assert runner.kernel_class.endswith("-v1")
    assert runner.row_exact
