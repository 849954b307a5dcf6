"""What the first shard does about another one that stands still, or that cannot do its part."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sojourn_runtime.model.errors import ModelError, ShardLost, WeightsDigestMismatch
from sojourn_runtime.model.shards.orders import Opening
from sojourn_runtime.model.shards.runner import open_shards
from sojourn_runtime.model.shards.team import Follower
from sojourn_runtime.model.weights import open_weights

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]  # processes that import torch


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    """Stopped before it has read anything."""
    opening = Opening(
        uri=str(tmp_path / "nowhere"),
        cache_dir=tmp_path,
        digest="",
        quantization="bf16",
        device="cpu",
        num_blocks=1,
        threads=1,
        number=1,
        shards=2,
        port=1,
    )
    memory = os.memfd_create("kv")
    made = Follower(opening, memory=memory, silence=0.2)
    os.kill(made.process.pid, signal.SIGSTOP)
    made.tell(opening)
    yield made
    made.process.kill()
    made.close()
    os.close(memory)


def test_a_shard_that_stands_still_is_lost_when_nothing_more_can_be_told(
    follower: Follower,
) -> None:
    with pytest.raises(ShardLost, match="shard 1 of 2 does not answer"):
        follower.tell(bytes(1 << 24))


def test_a_shard_that_cannot_open_its_model_says_why(follower: Follower) -> None:
    os.kill(follower.process.pid, signal.SIGCONT)
    with pytest.raises(ModelError, match="nowhere: not found") as raised:
        follower.answer(240)
    assert (raised.value.reason, raised.value.retry) == ("ModelNotFound", False)
    assert str(follower.lost()) == str(raised.value)


def test_a_model_that_cannot_be_opened_in_shards_leaves_nothing_open(
    model: Path, tmp_path: Path
) -> None:
    """Another file than the first shard's lies where the other one looks."""
    weights = replace(open_weights(str(model), cache_dir=tmp_path), digest="sha256:other")
    files = psutil.Process().num_fds()
    others = psutil.Process().children()
    with pytest.raises(WeightsDigestMismatch, match="sha256:other is demanded"):
        open_shards(
            weights,
            shards=2,
            uri=str(model),
            cache_dir=tmp_path,
            quantization="bf16",
            device="cpu",
            num_blocks=1,
            threads=1,
        )
    assert psutil.Process().num_fds() == files
    assert psutil.Process().children() == others
