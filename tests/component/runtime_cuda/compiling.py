"""Compiles every kernel for Hopper, which needs no GPU; a program, since a process that
interprets Triton cannot compile it. Prints of each whether it uses warpgroup products.
"""

from typing import Any

import triton
from sojourn_runtime.model.cuda import attention, kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HALF, FLOAT, WHOLE, NUMBER = "*bf16", "*fp32", "*i32", "i32"
HEADS = {"heads": 9, "kv_heads": 3}


def built(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: int) -> None:
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.asm["cubin"]
    print("kernel", kernel.__name__, "wgmma" in compiled.asm["ptx"])


given: dict[str, str]
fixed: dict[str, Any]
for full in (True, False):
    given = {"x": HALF, "weight": HALF, "out": FLOAT if full else HALF, "rows": NUMBER}
    fixed = {"outputs": 960, "inputs": 576, "has_bias": full, "has_residual": full}
    given |= {"bias": FLOAT, "residual": FLOAT} if full else {}
    fixed |= {} if full else {"bias": None, "residual": None}
    built(kernels.linear, given, {**fixed, "out_floats": full}, num_warps=4, num_stages=4)
    given = {"qkv": HALF, "cosine": FLOAT, "sine": FLOAT, "slots": WHOLE, "q": HALF, "pool": HALF}
    given |= {"layer": NUMBER} | ({"q_norm": FLOAT, "k_norm": FLOAT} if full else {})
    fixed = {"epsilon": 1e-5, **HEADS, "head_dim": 80, "padded_heads": 16, "padded_half": 64}
    fixed |= {"block_tokens": 64, "block_size": 1 << 16, "normed": full}
    built(kernels.place, given, fixed | ({} if full else {"q_norm": None, "k_norm": None}))
built(
    kernels.norm,
    {"x": FLOAT, "weight": FLOAT, "out": HALF},
    {"epsilon": 1e-5, "size": 576, "padded": 1024},
)
built(kernels.gated, {"gate_up": HALF, "out": HALF}, {"inner": 1536, "width": 1024})
for head_dim, padded in ((64, 64), (80, 128), (128, 128)):
    given = {"q": HALF, "pool": HALF, "tiles": WHOLE, "positions": WHOLE, "table_start": WHOLE}
    given |= {"blocks": WHOLE, "sums": FLOAT, "scales": FLOAT, "layer": NUMBER, "rows": NUMBER}
    given |= {"first_row": NUMBER, "first_tile": NUMBER}
    fixed = {"score_scale": 0.1, **HEADS, "head_dim": head_dim, "padded_dim": padded, "group": 3}
    fixed |= {"padded_group": 4, "block_size": 1 << 16}
    built(attention.attend, given, fixed, num_warps=4, num_stages=2)
    given = {"sums": FLOAT, "scales": FLOAT, "positions": WHOLE, "out": HALF}
    given |= {"rows": NUMBER, "first_row": NUMBER}
    fixed = {"heads": 9, "head_dim": head_dim, "padded_dim": padded}
    built(attention.combine, given, fixed, num_warps=1)
