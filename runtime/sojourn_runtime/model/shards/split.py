"""Which outputs of a model each of several processes (shards) computes.

Split by outputs only: a sum is never divided, so each output is computed by the same kernel in the
same order as in a single process, and the shards give one another what they computed. Attention
and its KV are split by key heads. Pure; how the shards speak is `group`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.errors import UnsupportedModel

UNIT = 64
"""Outputs that stay together: a tile of the CUDA kernels, and whole panels of the CPU's."""


Parts: TypeAlias = tuple[range, ...]


class Group(Protocol):
    """The shards of one model; every call is made by all of them, in the same order."""

    def gather(self, mine: npt.NDArray[np.float32], /) -> Sequence[npt.NDArray[np.float32]]:
        """The arrays of all shards, which are of one shape."""

    def agree(self, asked: bool, /) -> bool:  # noqa: FBT001 - a vote
        """What the first shard asked for."""

    def gathered(self, mine: Any, /) -> Sequence[Any]:
        """`gather` for contiguous tensors of torch, on whatever device."""


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of all shards, in order, of each kind of output."""

    kv_heads: Parts
    hidden: Parts
    inner: Parts
    shared: Parts
    vocab: Parts


@dataclass(frozen=True, slots=True)
class Shard:
    """One process of those that compute a model together."""

    number: int
    split: Split
    group: Group

    @property
    def kv_heads(self) -> range:
        return self.split.kv_heads[self.number]


def split(config: ModelConfig, shards: int) -> Split:
    """Raises UnsupportedModel if a shard would be left without work."""
    shared = config.experts.shared_inner if config.experts else 0
    found = Split(
        kv_heads=parts(config.kv_heads, shards),
        hidden=parts(config.hidden, shards, unit=UNIT),
        inner=parts(config.inner, shards, unit=UNIT),
        shared=parts(shared, shards, unit=UNIT),
        vocab=parts(config.vocab_size, shards, unit=UNIT),
    )
    needed = (found.kv_heads, found.hidden, found.inner, found.vocab)
    if not all(len(part) for each in needed for part in each):
        raise UnsupportedModel(
            f"{shards} shards are too many for {config.kv_heads} key heads, a width of "
            f"{config.hidden} and an MLP of {config.inner}: each needs a key head, and {UNIT} of "
            "the others; use fewer (--shards, spec.resources.maxShards)"
        )
    return found


def parts(count: int, shards: int, *, unit: int = 1) -> Parts:
    """Neighbouring parts of whole units; where they are uneven, the first are larger."""
    units = -(-count // unit)
    ends = [min(count, unit * -(-units * number // shards)) for number in range(shards + 1)]
    return tuple(starmap(range, pairwise(ends)))
