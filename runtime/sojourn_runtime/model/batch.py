"""Flattens segments into rows: what every runner computes from, checked against the model's
bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import assert_never

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import BLOCK_TOKENS, ModelConfig
from sojourn_runtime.model.protocol import Segment

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """One row per token. `table_start` says where in `blocks` the row's sequence begins;
    `wanted` rows give logits.
    """

    tokens: Ints
    positions: Ints
    table_start: Ints
    blocks: Ints
    wanted: Ints


def flatten(segments: Sequence[Segment], config: ModelConfig, num_blocks: int) -> Rows:
    """All tokens of all segments, in order; raises ValueError for what would read or write out
    of bounds.
    """
    lengths = [len(segment.tokens) for segment in segments]
    if not all(lengths):
        raise ValueError("a segment needs at least one token")
    firsts = list(accumulate(lengths, initial=0))
    tables = list(accumulate((len(segment.blocks) for segment in segments), initial=0))
    tokens = np.concatenate([np.asarray(segment.tokens, np.int32) for segment in segments])
    blocks = np.concatenate([np.asarray(segment.blocks, np.int32) for segment in segments])
    for segment, length in zip(segments, lengths, strict=True):
        _check(segment, length, config)
    if tokens.min() < 0 or tokens.max() >= config.vocab_size:
        raise ValueError(f"token ids must lie in 0..{config.vocab_size - 1}")
    if blocks.min() < 0 or blocks.max() >= num_blocks:
        raise ValueError(f"block numbers must lie in 0..{num_blocks - 1}")
    return Rows(
        tokens=tokens,
        positions=np.concatenate(
            [
                np.arange(s.start, s.start + n, dtype=np.int32)
                for s, n in zip(segments, lengths, strict=True)
            ]
        ),
        table_start=np.repeat(np.asarray(tables[:-1], np.int32), lengths),
        blocks=blocks,
        wanted=np.concatenate(
            [
                _wanted(s, first, n)
                for s, first, n in zip(segments, firsts[:-1], lengths, strict=True)
            ]
        ),
    )


def _check(segment: Segment, length: int, config: ModelConfig) -> None:
    end = segment.start + length
    if segment.start < 0 or end > config.max_positions:
        raise ValueError(
            f"positions {segment.start}..{end - 1} exceed the model's {config.max_positions}"
        )
    if end > len(segment.blocks) * BLOCK_TOKENS:
        raise ValueError(f"{len(segment.blocks)} blocks hold no position {end - 1}")


def _wanted(segment: Segment, first: int, length: int) -> Ints:
    match segment.logits:
        case "none":
            return np.empty(0, np.int32)
        case "last":
            return np.array([first + length - 1], np.int32)
        case "all":
            return np.arange(first, first + length, dtype=np.int32)
        case unknown:
            assert_never(unknown)
