"""Two shards on CUDA give the bits of one: NCCL between two GPUs, gloo between two interpreters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sojourn_runtime.model.protocol import Interrupted, Runner, Segment
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.shards.runner import open_shards
from sojourn_runtime.model.weights import open_weights

from tests.unit.tiny_models import write_model

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # two interpreters take their time
TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, 301, 80)]


def logits(runner: Runner, *segments: Segment) -> bytes:
    found = runner.forward(segments)
    assert not isinstance(found, Interrupted)
    return found.tobytes()


def test_two_shards_with_uneven_key_heads_give_the_bits_of_one(place: Any, tmp_path: Path) -> None:
    if place.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    uri = str(write_model(tmp_path / "model", num_key_value_heads=3, num_hidden_layers=1))
    weights = open_weights(uri, cache_dir=tmp_path)
    one = make_runner(weights, device="cuda", num_blocks=8)
    two = open_shards(
        weights,
        shards=2,
        uri=uri,
        cache_dir=tmp_path,
        quantization="bf16",
        device="cuda",
        num_blocks=8,
        threads=1,
    )
    try:
        assert (two.kernel_class, two.row_exact) == (one.kernel_class, one.row_exact)
        for segments in (
            [Segment(TOKENS[:66], 0, (3, 1), "all")],
            [Segment(TOKENS[66:67], 66, (3, 1)), Segment(TOKENS[5:6], 0, (0,))],
        ):
            assert logits(two, *segments) == logits(one, *segments)
        for block in (0, 1, 3):
            assert two.kv[block].tobytes() == one.kv[block].tobytes()
        two.kv[5] = two.kv[3]
        last = Segment(TOKENS[7:8], 67, (5, 1))
        assert logits(two, last) == logits(one, Segment(TOKENS[7:8], 67, (3, 1)))
    finally:
        two.close()
        one.close()
