"""Two shards give the logits and the KV of one process, bit for bit: in every kernel class, with
uneven key heads, windows, biases, norms over all heads, and experts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.engine.moves import Copy, Fetch, Load, Move, Save, Spill, Stash
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Runner, Segment, StopFlag
from sojourn_runtime.model.quantization import read_plan
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.shards.runner import open_shards
from sojourn_runtime.model.weights import open_weights
from sojourn_runtime.mover import Lost, Mover

from tests.unit.tiny_models import write_model

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]  # processes that import torch
TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, 301, 400)]
BLOCKS = 80
QWEN2_MOE = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 80,
    "shared_expert_intermediate_size": 96,
}
OLMOE = {"architectures": ["OlmoeForCausalLM"], "num_experts": 33, "num_experts_per_tok": 8}
MISTRAL = {"architectures": ["MistralForCausalLM"], "sliding_window": 50}
UNEVEN = {"num_key_value_heads": 3, "tie_word_embeddings": False}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "uneven": (UNEVEN, "bf16"),
    "uneven-amx": (UNEVEN, "bf16"),
    "w8a16": ({}, "w8a16"),
    "w8a8-window": (MISTRAL, "w8a8"),
    "shared-expert": (QWEN2_MOE, "bf16"),
    "experts-whole-norms": (OLMOE, "bf16"),
}


@pytest.fixture(scope="module", params=MODELS)
def one_and_two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Runner, Runner]]:
    """The same model in one process and in two."""
    changes, kind = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    uri, cache = str(write_model(folder / "model", **changes)), folder / "cache"
    weights = open_weights(uri, cache_dir=cache, plan=read_plan(kind))
    device = "cpu-amx" if request.param.endswith("amx") else "cpu"
    one = make_runner(weights, device=device, num_blocks=BLOCKS, threads=1)
    two = open_shards(
        weights,
        shards=2,
        uri=uri,
        cache_dir=cache,
        quantization=kind,
        device=device,
        num_blocks=BLOCKS,
        threads=2,
    )
    yield one, two
    two.close()
    one.close()


def logits(runner: Runner, segments: Sequence[Segment]) -> npt.NDArray[np.float32]:
    found = runner.forward(segments)
    assert not isinstance(found, Interrupted)
    return found


def test_logits_and_kv_equal_those_of_one_process(one_and_two: tuple[Runner, Runner]) -> None:
    one, two = one_and_two
    assert (one.kernel_class, one.block_bytes) == (two.kernel_class, two.block_bytes)
    passes = [
        [Segment(TOKENS[:150], 0, (7, 3, 0), "all")],  # one, and in chunks off every grid
        [Segment(TOKENS[:37], 0, (8, 9, 10), "all")],
        [Segment(TOKENS[37:150], 37, (8, 9, 10), "all"), Segment(TOKENS[5:6], 0, (11,))],
        [Segment(TOKENS[150:151], 150, (7, 3, 0))],
        [Segment(TOKENS[150:151], 150, (8, 9, 10)), Segment(TOKENS[6:7], 1, (11,))],
        [Segment(TOKENS[n : n + 9], 0, (12 + n,), "none") for n in range(33)],
        [Segment(TOKENS[n : n + 1], 9, (12 + n,)) for n in range(33)],
    ]
    for segments in passes:
        assert logits(two, segments).tobytes() == logits(one, segments).tobytes()
    for block in range(BLOCKS):
        assert two.kv[block].tobytes() == one.kv[block].tobytes(), block


def test_a_pass_stops_in_all_shards_and_the_next_one_is_as_ever(
    one_and_two: tuple[Runner, Runner],
) -> None:
    one, two = one_and_two
    answers = iter([False, True])  # at the first boundary, and four layers on
    stop = StopFlag(lambda: next(answers))
    assert two.forward([Segment(TOKENS[:40], 0, (1,))], stop=stop) is INTERRUPTED
    again = [Segment(TOKENS[:40], 0, (1,), "all")]
    assert logits(two, again).tobytes() == logits(one, again).tobytes()


def test_blocks_of_one_process_serve_two_and_the_reverse(
    one_and_two: tuple[Runner, Runner],
) -> None:
    one, two = one_and_two
    for first, second in ((one, two), (two, one)):
        logits(first, [Segment(TOKENS[:64], 0, (0,), "none")])
        second.kv[5] = first.kv[0]
        mine = logits(first, [Segment(TOKENS[64:65], 64, (0, 1))])
        assert logits(second, [Segment(TOKENS[64:65], 64, (5, 6))]).tobytes() == mine.tobytes()


def test_blocks_of_all_shards_move_between_the_tiers(one_and_two: tuple[Runner, Runner]) -> None:
    one, two = one_and_two
    for runner in (one, two):
        logits(runner, [Segment(TOKENS[:64], 0, (0,), "none")])
    expected, spilt = one.kv[0].tobytes(), []

    def read(name: bytes, target: memoryview) -> None:
        assert name == b"read"
        target[:] = expected

    def spill(name: bytes, data: memoryview) -> bool:
        spilt.append((name, bytes(data)))
        return True

    mover = Mover(two.kv, slots=2, read=read, spill=spill)
    moves: list[Move] = [Stash(0, 1), Fetch(1, 70), Copy(70, 71), Load(b"read", 72)]
    lost = mover.carry_out([*moves, Spill(b"a", 1), Save(b"b", 71)])
    mover.settle()
    mover.close()
    assert lost == Lost()
    assert spilt == [(b"a", expected), (b"b", expected)]
    last = [Segment(TOKENS[64:65], 64, (0, 1))]
    for block in (70, 71, 72):
        there = [Segment(TOKENS[64:65], 64, (block, 73))]
        assert logits(two, there).tobytes() == logits(one, last).tobytes()
