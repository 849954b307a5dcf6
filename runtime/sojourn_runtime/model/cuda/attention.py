"""Paged attention in Triton, row-exact, the same kernels for prefill and decode.

The keys of a row are cut at absolute positions into splits of a fixed size, so that parallelism
grows with the length; within a split they are taken block by block, and the splits are combined
in their order. A block that a row may not see changes nothing in it: it adds exact zeros.
"""

import triton
import triton.language as tl

from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.cuda.kernels import product, to_bf16

BLOCKS_PER_SPLIT = 8
SPLIT_TOKENS = BLOCKS_PER_SPLIT * BLOCK_TOKENS
SLOTS = 64
"""Pairs of row and head that one program computes; pairs missing to it are computed in vain."""

_BLOCK = tl.constexpr(BLOCK_TOKENS)
_BLOCKS = tl.constexpr(BLOCKS_PER_SPLIT)
_SPLIT = tl.constexpr(SPLIT_TOKENS)
_SLOTS = tl.constexpr(SLOTS)
_NEVER = tl.constexpr(-1.0e30)  # finite: the difference of two infinities is not a number


@triton.jit(do_not_specialize=["layer", "rows", "first_row", "first_tile"])
def attend(
    q,
    pool,
    tiles,
    positions,
    table_start,
    blocks,
    sums,
    scales,
    layer,
    rows,
    first_row,
    first_tile,
    score_scale: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    group: tl.constexpr,
    padded_group: tl.constexpr,
    block_size: tl.constexpr,
):
    """Partial sums over one split, of the rows of one tile and the heads of one key head.

    `tiles` holds (first row, rows) of each, all of one sequence. Written are sums[split, row,
    head, dim], and in scales[split, row, head, 2] the greatest score and the sum of weights.
    """
    tile = first_tile + tl.program_id(0)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    first, count = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    pair = tl.arange(0, _SLOTS)
    row = first + pair // padded_group
    head = kv_head * group + pair % padded_group
    real = (pair // padded_group < count) & (pair % padded_group < group)
    dim = tl.arange(0, padded_dim)
    position = tl.load(positions + row, mask=real, other=-1)
    last = tl.max(position, axis=0)
    table = blocks + tl.load(table_start + first)
    query = tl.load(
        q + (row * heads + head)[:, None].to(tl.int64) * head_dim + dim[None, :],
        mask=real[:, None] & (dim < head_dim)[None, :],
        other=0,
    )
    top = tl.full((_SLOTS,), _NEVER, tl.float32)
    weight = tl.full((_SLOTS,), 0, tl.float32)
    total = tl.full((_SLOTS, padded_dim), 0, tl.float32)
    for number in range(split * _BLOCKS, tl.minimum((split + 1) * _BLOCKS, last // _BLOCK + 1)):
        key = number * _BLOCK + tl.arange(0, _BLOCK)
        at = tl.load(table + number).to(tl.int64) * block_size
        at += (layer * 2 * kv_heads + kv_head) * _BLOCK * head_dim
        inside = tl.arange(0, _BLOCK)[:, None] * head_dim + dim[None, :]
        # what lies behind the last row is another's, or nobody's
        mask = (key <= last)[:, None] & (dim < head_dim)[None, :]
        keys = tl.load(pool + at + inside, mask=mask, other=0)
        values = tl.load(pool + at + kv_heads * _BLOCK * head_dim + inside, mask=mask, other=0)
        none = tl.full((_SLOTS, _BLOCK), 0, tl.float32)
        score = product(query, tl.trans(keys), none) * score_scale
        score = tl.where(key[None, :] <= position[:, None], score, _NEVER)
        higher = tl.maximum(top, tl.max(score, axis=1))
        shrink = tl.exp2(top - higher)
        part = tl.exp2(score - higher[:, None])
        weight = weight * shrink + tl.sum(part, axis=1)
        total = product(to_bf16(part), values, total * shrink[:, None])
        top = higher
    seen = real & (position >= split * _SPLIT)
    place = ((split * rows + row - first_row) * heads + head).to(tl.int64)
    into = sums + place[:, None] * head_dim + dim[None, :]
    tl.store(into, total, mask=seen[:, None] & (dim < head_dim)[None, :])
    tl.store(scales + place * 2, top, mask=seen)
    tl.store(scales + place * 2 + 1, weight, mask=seen)


@triton.jit(do_not_specialize=["rows", "first_row"])
def combine(
    sums,
    scales,
    positions,
    out,
    rows,
    first_row,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """out[row, head, dim] from the splits of a row, the first one first."""
    row, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, padded_dim)
    position = tl.load(positions + first_row + row)
    top, weight = tl.full([], _NEVER, tl.float32), tl.full([], 0.0, tl.float32)
    total = tl.full((padded_dim,), 0, tl.float32)
    for split in range(position // _SPLIT + 1):
        place = ((split * rows + row) * heads + head).to(tl.int64)
        part = tl.load(sums + place * head_dim + dim, mask=dim < head_dim, other=0)
        mine = tl.load(scales + place * 2)
        higher = tl.maximum(top, mine)
        shrink, share = tl.exp2(top - higher), tl.exp2(mine - higher)
        weight = weight * shrink + tl.load(scales + place * 2 + 1) * share
        total = total * shrink + part * share
        top = higher
    at = ((first_row + row) * heads + head).to(tl.int64) * head_dim
    tl.store(out + at + dim, to_bf16(total / weight), mask=dim < head_dim)
