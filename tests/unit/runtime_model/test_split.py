"""Which outputs are whose: every one somebody's, none twice, in whole tiles, and nobody idle."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_api import names
from sojourn_api.gpus import WORKSPACE_BYTES
from sojourn_runtime.model.errors import (
    InvalidConfiguration,
    ModelError,
    ShardLost,
    UnknownWeightsFormat,
    UnsupportedModel,
)
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.shards.split import UNIT, Shard, parts, split
from sojourn_runtime.model.weights import Weights
from sojourn_runtime.opening import ContextTooLong, pool_blocks
from sojourn_runtime.settings import parse_settings


def test_a_device_that_computes_in_one_process_takes_no_part(weights: Weights) -> None:
    part = Shard(0, split(weights.config, 2), group=None)  # type: ignore[arg-type]  # never asked
    for device in ("eager", "cuda-eager"):
        with pytest.raises(InvalidConfiguration, match=f"{device} computes in one process"):
            make_runner(weights, device=device, num_blocks=1, shard=part)


@pytest.mark.parametrize(
    "error", [UnknownWeightsFormat(Path("/w"), "empty"), ShardLost("gone"), UnsupportedModel("x")]
)
def test_errors_travel_between_shards_as_they_are(error: ModelError) -> None:
    there = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(there), str(there)) == (type(error), str(error))


@given(count=st.integers(0, 5000), shards=st.integers(1, 16), unit=st.sampled_from([1, 16, 64]))
def test_parts_are_neighbours_that_cover_all_in_whole_units(
    count: int, shards: int, unit: int
) -> None:
    found = parts(count, shards, unit=unit)
    assert len(found) == shards
    assert [number for part in found for number in part] == list(range(count))
    assert all(part.start % unit == 0 or part.start == count for part in found)
    units = [-(-len(part) // unit) for part in found]
    assert max(units) - min(units) <= 1
    assert units[0] == max(units)


def test_three_key_heads_over_two_shards_are_two_and_one(weights: Weights) -> None:
    config = replace(weights.config, kv_heads=3)
    found = split(config, 2)
    assert found.kv_heads == (range(2), range(2, 3))
    assert found.hidden == (range(UNIT), range(UNIT, 80))
    assert found.shared == (range(0), range(0))


@pytest.mark.parametrize(("shards", "heads"), [(3, 2), (3, 6)])
def test_more_shards_than_there_is_work_for_are_refused(
    weights: Weights, shards: int, heads: int
) -> None:
    """Too few key heads; a width of 80, which is two tiles."""
    with pytest.raises(UnsupportedModel, match=f"{shards} shards are too many for {heads} key"):
        split(replace(weights.config, kv_heads=heads), shards)


def test_the_grant_of_each_gpu_holds_its_shard(weights: Weights) -> None:
    """The first one of three key heads over two, with two thirds of everything."""
    weights = replace(weights, config=replace(weights.config, kv_heads=3))
    tensors = sum(tensor.nbytes for tensor in weights.tensors.values())
    block = weights.config.block_bytes // 3 * 2
    room = WORKSPACE_BYTES + tensors + 12 * block
    env = {names.env_gpu_bytes(number): str(room) for number in (0, 4)}
    settings = parse_settings(["--model", "tiny", "--shards", "2"], env)
    assert 12 <= pool_blocks(settings, weights, 640) <= 12 + tensors // block
    with pytest.raises(ContextTooLong):
        pool_blocks(settings, weights, 64 * 200)
