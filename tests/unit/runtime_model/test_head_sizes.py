"""Every head size that the kernels take, with every number of queries that may share a key: the
values of a plain model, in the same bits by every variant, in chunks and token by token.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.quantization import Kind
from sojourn_runtime.model.weights import Weights, open_weights

from tests.unit.plain_llama import THETA, TOKENS, Floats, Scenario, llama
from tests.unit.processors import variants

SHAPES = [
    *((32, 10, 2), (64, 14, 2), (96, 3, 3), (128, 8, 2), (128, 8, 1)),
    *((160, 4, 2), (192, 6, 1), (224, 3, 1), (256, 2, 2)),
]
"""Head size, heads and key heads: one to eight queries share a key."""
CUTS = (37, 101, *range(120, len(TOKENS)))
BLOCKS = (2, 0, 3)


def scenario(head_dim: int, heads: int, kv_heads: int) -> Scenario:
    changes: dict[str, Any] = {
        "head_dim": head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }
    frequencies = THETA ** (-np.arange(0, head_dim, 2) / head_dim)
    return Scenario(changes, frequencies, scale=head_dim**-0.5, dim=head_dim)


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def shape(request: pytest.FixtureRequest) -> Scenario:
    return scenario(*request.param)


@pytest.fixture(scope="module")
def weights(
    shape: Scenario, write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Weights:
    folder = tmp_path_factory.mktemp("model")
    return open_weights(str(write_model(folder / "model", **shape.changes)), cache_dir=folder)


def passes(weights: Weights, variant: str, cuts: Sequence[int]) -> tuple[Floats, bytes]:
    """Logits and KV of TOKENS, computed in chunks that end at `cuts`."""
    runner = CpuRunner(weights, num_blocks=4, threads=2, variant=variant)
    made = []
    for begin, end in itertools.pairwise([0, *cuts, len(TOKENS)]):
        logits = runner.forward([Segment(TOKENS[begin:end], begin, BLOCKS, "all")])
        assert not isinstance(logits, Interrupted)
        made.append(logits)
    kv = runner.kv.tobytes()
    runner.close()
    return np.concatenate(made), kv


def test_logits_are_those_of_a_plain_model(
    shape: Scenario, weights: Weights, random_tensors: Callable[..., dict[str, Floats]]
) -> None:
    expected = llama(random_tensors(**shape.changes), TOKENS, shape, Kind.BF16)
    off = np.abs(passes(weights, "avx2", ())[0] - expected)
    assert expected.std() > 0.5
    assert off.max() < 0.2
    assert off.mean() < 0.015


@pytest.mark.parametrize("variant", variants("avx2", "avxvnni", "avx512", "avx512vnni", "amx"))
def test_chunks_and_decode_by_every_variant_have_the_bits_of_one_pass(
    weights: Weights, variant: str
) -> None:
    whole, kv = passes(weights, "avx2", ())
    logits, other_kv = passes(weights, variant, CUTS)
    assert logits.tobytes() == whole.tobytes()
    assert other_kv == kv
