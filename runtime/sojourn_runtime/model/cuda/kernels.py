"""Linears, norms, rope and activation in Triton, row-exact: a row's bits depend on that row alone.

There is one tile for every number of rows, each output is summed over the inputs in one order by
one program, and no size that varies with the batch is compiled in: so one binary computes a row
whatever stands beside it. Norms are here because torch's reductions choose their shape by the
number of rows. Sums are fp32, matrices and activations bf16, the residual stream fp32.
"""

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Triton's interpreter computes, on the CPU; read when the kernels are defined."""

helper = (lambda function: function) if INTERPRETED else triton.jit
"""Called from kernels; the interpreter spends milliseconds on each call of a jitted function."""

# Not measured on a GPU: 64 rows fit the narrowest warpgroup product of Hopper.
TILE_ROWS = tl.constexpr(64)
TILE_OUTPUTS = tl.constexpr(64)
TILE_INPUTS = tl.constexpr(64)
_WIDE = tl.constexpr(INTERPRETED)


@helper
def to_bf16(x):
    """To the nearest, ties to even: the interpreter's own conversion drops carries."""
    if _WIDE:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@helper
def to_float(x):
    """Of bf16; the interpreter's own conversion is right, and slow."""
    if _WIDE:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@helper
def product(a, b, total):
    """`total` + a b for bf16 tiles; the interpreter multiplies bf16 wrongly, and fp32 by a BLAS
    whose rows may depend on their place in the tile.
    """
    if _WIDE:
        return total + tl.sum(to_float(a)[:, :, None] * to_float(b)[None, :, :], axis=1)
    else:
        return tl.dot(a, b, total)


@triton.jit(do_not_specialize=["rows"])
def linear(
    x,
    weight,
    bias,
    residual,
    out,
    rows,
    outputs: tl.constexpr,
    inputs: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
    out_floats: tl.constexpr,
):
    """out[rows, outputs] = x weight' (+ bias) (+ residual); weight is [outputs, inputs]."""
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    # 64 bits: a vocabulary times a width may pass 2^31
    x_at = x + row[:, None].to(tl.int64) * inputs
    weight_at = weight + output[None, :].to(tl.int64) * inputs
    total = tl.full((TILE_ROWS, TILE_OUTPUTS), 0, tl.float32)
    for begin in range(0, inputs, TILE_INPUTS):
        i = begin + tl.arange(0, TILE_INPUTS)
        a = tl.load(x_at + i[None, :], mask=(row < rows)[:, None] & (i < inputs)[None, :], other=0)
        b = tl.load(
            weight_at + i[:, None],
            mask=(output < outputs)[None, :] & (i < inputs)[:, None],
            other=0,
        )
        total = product(a, b, total)
    if has_bias:
        total += tl.load(bias + output, mask=output < outputs, other=0)[None, :]
    at = row[:, None].to(tl.int64) * outputs + output[None, :]
    mask = (row < rows)[:, None] & (output < outputs)[None, :]
    if has_residual:
        total += tl.load(residual + at, mask=mask, other=0)
    tl.store(out + at, total if out_floats else to_bf16(total), mask=mask)


@triton.jit
def norm(x, weight, out, epsilon: tl.constexpr, size: tl.constexpr, padded: tl.constexpr):
    """A row of RMSNorm by each program: fp32 in, bf16 out."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, padded)
    values = tl.load(x + row * size + i, mask=i < size, other=0)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / size + epsilon)
    gain = tl.load(weight + i, mask=i < size, other=0)
    tl.store(out + row * size + i, to_bf16(values * scale * gain), mask=i < size)


@triton.jit
def gated(gate_up, out, inner: tl.constexpr, width: tl.constexpr):
    """out[rows, inner] = silu(gate) * up, the halves of gate_up's rows."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * width + tl.arange(0, width)
    gate = to_float(tl.load(gate_up + row * 2 * inner + i, mask=i < inner, other=0))
    up = to_float(tl.load(gate_up + (row * 2 + 1) * inner + i, mask=i < inner, other=0))
    tl.store(out + row * inner + i, to_bf16(gate / (1 + tl.exp(-gate)) * up), mask=i < inner)


@triton.jit(do_not_specialize=["layer"])
def place(
    qkv,
    cosine,
    sine,
    q_norm,
    k_norm,
    slots,
    q,
    pool,
    layer,
    epsilon: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_heads: tl.constexpr,
    padded_half: tl.constexpr,
    block_tokens: tl.constexpr,
    block_size: tl.constexpr,
    normed: tl.constexpr,
):
    """Turn the heads of one row, after their norms if they have any: queries into `q`, keys and
    values (which are not turned) into the row's slot of the pool.
    """
    row = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = head_dim // 2
    every: tl.constexpr = heads + 2 * kv_heads
    head = tl.arange(0, padded_heads)[:, None]
    i = tl.arange(0, padded_half)[None, :]
    real = (head < every) & (i < half)
    query, turned = real & (head < heads), head < heads + kv_heads
    source = qkv + (row * every + head) * head_dim + i
    a = to_float(tl.load(source, mask=real, other=0))
    b = to_float(tl.load(source + half, mask=real, other=0))
    if normed:
        key = real & (head >= heads) & turned
        scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / head_dim + epsilon)[:, None]
        again = head * 0  # one gain for all heads
        for_a = tl.load(q_norm + again + i, mask=query, other=1)
        for_a *= tl.load(k_norm + again + i, mask=key, other=1)
        for_b = tl.load(q_norm + half + again + i, mask=query, other=1)
        for_b *= tl.load(k_norm + half + again + i, mask=key, other=1)
        a = tl.where(turned, a * scale * for_a, a)
        b = tl.where(turned, b * scale * for_b, b)
    c = tl.load(cosine + row * half + i, mask=i < half, other=1)
    s = tl.load(sine + row * half + i, mask=i < half, other=0)
    first = to_bf16(tl.where(turned, a * c - b * s, a))
    second = to_bf16(tl.where(turned, b * c + a * s, b))
    target = q + (row * heads + head) * head_dim + i
    tl.store(target, first, mask=query)
    tl.store(target + half, second, mask=query)
    slot = tl.load(slots + row).to(tl.int64)
    # [block][layer][key, value][kv_heads][token][head_dim]: the head counts both
    tile = (layer * 2 * kv_heads + head - heads) * block_tokens + slot % block_tokens
    target = pool + slot // block_tokens * block_size + tile * head_dim + i
    tl.store(target, first, mask=real & (head >= heads))
    tl.store(target + half, second, mask=real & (head >= heads))
