"""The kernels' launches, with their grids: on tensors, and waiting for nothing.

Each is row-exact. What is left to torch around them is row-exact by nature: a gather, and an
elementwise product and cosine in fp64, where no sum could take another shape.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
import triton

from sojourn_runtime.model.config import BLOCK_TOKENS, ModelConfig
from sojourn_runtime.model.cuda import attention, kernels
from sojourn_runtime.model.cuda.inputs import PARTS, Group, Inputs

WORKSPACE_BYTES = 64 << 20
"""Of partial sums: longer passes attend in groups, which changes no bit."""


@dataclass(frozen=True, slots=True)
class Given:
    """`Inputs` on the device; the rest of a pass is computed from it, the weights and the KV.

    `splits` may be more than the longest sequence has: those compute nothing.
    """

    parts: dict[str, torch.Tensor]
    splits: int
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, inputs: Inputs, buffer: torch.Tensor, *, splits: int) -> Self:
        """`buffer` is that of the inputs, or a larger recorded one that their copy came to."""
        places = zip(PARTS, inputs.shape.places, strict=True)
        return cls({name: buffer[place] for name, place in places}, splits, inputs.groups)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.parts[name]


def tile_rows(config: ModelConfig) -> int:
    """Rows of one sequence that attention computes at once."""
    return attention.SLOTS // int(triton.next_power_of_2(config.heads // config.kv_heads))


def group_rows(config: ModelConfig) -> int:
    """Rows times splits whose partial sums fit the workspace."""
    return WORKSPACE_BYTES // (4 * config.heads * (config.head_dim + 2))


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    floats: bool = False,
) -> torch.Tensor:
    """X weight' in bf16; in fp32 if asked, and onto a residual."""
    (rows, inputs), outputs = x.shape, len(weight)
    floats = floats or residual is not None
    out = x.new_empty((rows, outputs), dtype=torch.float32 if floats else torch.bfloat16)
    grid = (
        triton.cdiv(rows, kernels.TILE_ROWS.value),
        triton.cdiv(outputs, kernels.TILE_OUTPUTS.value),
    )
    kernels.linear[grid](
        x,
        weight,
        bias,
        residual,
        out,
        rows,
        outputs=outputs,
        inputs=inputs,
        has_bias=bias is not None,
        has_residual=residual is not None,
        out_floats=floats,
        num_warps=4,
        num_stages=4,
    )
    return out


def norm(x: torch.Tensor, weight: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    """RMSNorm of fp32 rows, in bf16."""
    rows, size = x.shape
    out = x.new_empty(x.shape, dtype=torch.bfloat16)
    padded = triton.next_power_of_2(size)
    kernels.norm[(rows,)](x, weight, out, epsilon=epsilon, size=size, padded=padded)
    return out


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of the two halves of each row."""
    rows, inner = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, inner))
    width = min(1024, triton.next_power_of_2(inner))
    kernels.gated[rows, triton.cdiv(inner, width)](gate_up, out, inner=inner, width=width)
    return out


def rotation(
    positions: torch.Tensor, frequencies: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every row and pair."""
    angles = positions.double()[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def place(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    *,
    layer: int,
    slots: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor | None, torch.Tensor | None],
    config: ModelConfig,
) -> torch.Tensor:
    """The queries [rows, heads, head_dim], turned; keys and values go into the pool."""
    q = qkv.new_empty((len(qkv), config.heads, config.head_dim))
    kernels.place[(len(qkv),)](
        qkv,
        *turn,
        *norms,
        slots,
        q,
        pool,
        layer,
        epsilon=config.rms_epsilon,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        padded_heads=triton.next_power_of_2(config.heads + 2 * config.kv_heads),
        padded_half=triton.next_power_of_2(config.head_dim // 2),
        block_tokens=BLOCK_TOKENS,
        block_size=config.block_bytes // 2,
        normed=config.qk_norm,
    )
    return q


def attend(
    q: torch.Tensor, pool: torch.Tensor, given: Given, *, layer: int, config: ModelConfig
) -> torch.Tensor:
    """[rows, heads * head_dim], group after group."""
    out = torch.empty_like(q)
    for group in given.groups:
        _attend_group(q, pool, out, given, group, layer=layer, config=config)
    return out.flatten(1)


def _attend_group(
    q: torch.Tensor,
    pool: torch.Tensor,
    out: torch.Tensor,
    given: Given,
    group: Group,
    *,
    layer: int,
    config: ModelConfig,
) -> None:
    heads, head_dim = config.heads, config.head_dim
    padded_dim = triton.next_power_of_2(head_dim)
    shared = heads // config.kv_heads
    room = (given.splits, group.rows, heads)
    sums = q.new_empty((*room, head_dim), dtype=torch.float32)
    scales = q.new_empty((*room, 2), dtype=torch.float32)
    attention.attend[(group.tiles, config.kv_heads, given.splits)](
        q,
        pool,
        given["tiles"],
        given["positions"],
        given["table_start"],
        given["blocks"],
        sums,
        scales,
        layer,
        group.rows,
        group.first_row,
        group.first_tile,
        score_scale=math.log2(math.e) * config.score_scale,
        heads=heads,
        kv_heads=config.kv_heads,
        head_dim=head_dim,
        padded_dim=padded_dim,
        group=shared,
        padded_group=triton.next_power_of_2(shared),
        block_size=config.block_bytes // 2,
        num_warps=4,
        num_stages=2,
    )
    attention.combine[(group.rows, heads)](
        sums,
        scales,
        given["positions"],
        out,
        group.rows,
        group.first_row,
        heads=heads,
        head_dim=head_dim,
        padded_dim=padded_dim,
        num_warps=1,
    )
