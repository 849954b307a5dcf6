"""What the first shard tells the others, as values, and how each carries out the moves of blocks.

Blocks in host memory, which all shards map, are whole: each copies its own key heads from and to
them. So what is saved does not tell how many shards computed it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from sojourn_runtime.engine.moves import Copy, Fetch, Stash
from sojourn_runtime.model.pages import pages
from sojourn_runtime.model.protocol import Runner, Segment

Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Opening:
    """What a shard is started with: the first one's settings, and its own place among them."""

    uri: str
    cache_dir: Path
    digest: str
    quantization: str
    device: str
    num_blocks: int
    threads: int
    number: int
    shards: int
    port: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Compute this with the others."""

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """So many slots lie in the shared memory now."""

    slots: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Answer when all before is done; who cannot do it answers with its `ModelError`, and ends."""


Move: TypeAlias = Stash | Fetch | Copy


class Part:
    """One shard's blocks, and its heads' part of the whole ones in the memory of all."""

    def __init__(self, runner: Runner, heads: range, *, memory: int) -> None:
        """`memory`: the file of it."""
        config = runner.config
        self.slots: Bytes = np.empty((0, config.block_bytes), np.uint8)
        self._kv = runner.kv
        self._heads = heads
        self._tiles = (2 * config.layers, config.kv_heads, -1)
        self._memory = memory

    def map(self, slots: int) -> None:
        self.slots = pages(slots, self.slots.shape[1], file=self._memory)

    def carry_out(self, move: Move) -> None:
        """On return it is done."""
        match move:
            case Stash(block, slot):
                mine = self._mine(slot)
                mine[...] = self._kv[block].reshape(mine.shape)
            case Fetch(slot, block):
                self._kv[block] = self._mine(slot).reshape(-1)
            case Copy(source, target):
                self._kv[target] = self._kv[source]
            case _:
                assert_never(move)

    def _mine(self, slot: int) -> Bytes:
        whole: Bytes = self.slots[slot].reshape(self._tiles)
        return whole[:, self._heads.start : self._heads.stop]
