"""What a pass reads beside weights and KV, as whole numbers in one buffer: one copy to the device.

No torch here; `flatten` has checked all of it against the model's bounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.batch import Rows, flatten
from sojourn_runtime.model.config import BLOCK_TOKENS, ModelConfig
from sojourn_runtime.model.protocol import Segment

ALIGN = 4
"""Whole numbers: each part begins at 16 bytes, for Triton compiles by alignment."""
PARTS = ("tokens", "positions", "slots", "table_start", "tiles", "blocks", "wanted")
Buffer = TypeVar("Buffer")


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of each there are: what a recorded pass depends on."""

    rows: int
    tiles: int
    blocks: int
    wanted: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of `PARTS`, in whole numbers."""
        rows = (self.rows,) * 4
        return (*rows, 2 * self.tiles, self.blocks, self.wanted)

    @property
    def places(self) -> Iterator[slice]:
        """Of `PARTS` in the buffer."""
        begins = accumulate((-(-size // ALIGN) * ALIGN for size in self.sizes), initial=0)
        return (slice(b, b + size) for b, size in zip(begins, self.sizes, strict=False))

    @property
    def size(self) -> int:
        return sum(-(-size // ALIGN) * ALIGN for size in self.sizes)


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring tiles whose partial sums fit the workspace together."""

    first_tile: int
    tiles: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """`splits`: of the longest sequence."""

    shape: Shape
    splits: int
    groups: tuple[Group, ...]
    buffer: npt.NDArray[np.int32]


def needed(segment: Segment) -> Segment:
    """Without the blocks behind its last token."""
    end = segment.start + len(segment.tokens)
    blocks = segment.blocks[: -(-end // BLOCK_TOKENS)]
    return Segment(segment.tokens, segment.start, blocks, segment.logits)


def gather(
    segments: Sequence[Segment],
    config: ModelConfig,
    num_blocks: int,
    *,
    tile_rows: int,
    split_tokens: int,
    group_rows: int,
    room: int = 0,
) -> Inputs:
    """`group_rows`: how many rows times splits fit the workspace; `room`: for at least so many
    blocks.
    """
    segments = [needed(segment) for segment in segments]
    rows = flatten(segments, config, num_blocks)
    tiles = list(_tiles(segments, tile_rows))
    splits = int(rows.positions.max()) // split_tokens + 1
    shape = Shape(
        rows=len(rows.tokens),
        tiles=len(tiles),
        blocks=max(room, len(rows.blocks)),
        wanted=len(rows.wanted),
    )
    groups = tuple(_groups(tiles, max(1, group_rows // splits)))
    return Inputs(shape, splits, groups, _fill(shape, rows, tiles))


def _fill(shape: Shape, rows: Rows, tiles: Sequence[tuple[int, int]]) -> npt.NDArray[np.int32]:
    blocks = rows.blocks[rows.table_start + rows.positions // BLOCK_TOKENS]
    parts = {
        "tokens": rows.tokens,
        "positions": rows.positions,
        "slots": blocks * BLOCK_TOKENS + rows.positions % BLOCK_TOKENS,
        "table_start": rows.table_start,
        "tiles": np.asarray(tiles, np.int32).reshape(-1),
        "blocks": rows.blocks,
        "wanted": rows.wanted,
    }
    buffer = np.zeros(shape.size, np.int32)
    for name, place in zip(PARTS, shape.places, strict=True):
        buffer[place.start : place.start + len(parts[name])] = parts[name]
    return buffer


def _tiles(segments: Sequence[Segment], most: int) -> Iterator[tuple[int, int]]:
    """First row and rows of each; a tile belongs to one sequence."""
    first = 0
    for segment in segments:
        end = first + len(segment.tokens)
        for begin in range(first, end, most):
            yield begin, min(most, end - begin)
        first = end


def _groups(tiles: Sequence[tuple[int, int]], most: int) -> Iterator[Group]:
    """At least one tile each, and at most `most` rows if that is more."""
    begin = 0
    for end in range(1, len(tiles) + 1):
        first = tiles[begin][0]
        if end < len(tiles) and sum(tiles[end]) - first <= most:
            continue
        yield Group(begin, end - begin, first, sum(tiles[end - 1]) - first)
        begin = end
