"""By which names and in what pieces the kin of Llama store what Llama calls otherwise."""

from sojourn_runtime.model.config import ModelConfig

_ALL = slice(None)
_MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def fused(config: ModelConfig, name: str) -> tuple[str, slice]:
    """The tensor that holds the one of this name, and which rows of it: Phi-3 joins queries, keys
    and values, and gate and up.
    """
    if config.architecture != "phi3":
        return name, _ALL
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    pieces = {
        "self_attn.q_proj": ("self_attn.qkv_proj", slice(0, queries)),
        "self_attn.k_proj": ("self_attn.qkv_proj", slice(queries, queries + keys)),
        "self_attn.v_proj": ("self_attn.qkv_proj", slice(queries + keys, queries + 2 * keys)),
        "mlp.gate_proj": ("mlp.gate_up_proj", slice(0, config.inner)),
        "mlp.up_proj": ("mlp.gate_up_proj", slice(config.inner, 2 * config.inner)),
    }
    for piece, (whole, rows) in pieces.items():
        if piece in name:
            return name.replace(piece, whole), rows
    return name, _ALL


def mixtral(name: str) -> str:
    """Mixtral's name for a tensor of an expert, or of the router."""
    before, found, after = name.partition(".mlp.")
    if not found:
        return name
    for part, own in _MIXTRAL.items():
        after = after.replace(part, own)
    return f"{before}.block_sparse_moe.{after}"
