"""A Llama's weights as our kernels hold them, under the names that others know them by."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from sojourn_runtime.model.packing import unpack, unpack_gate_up
from sojourn_runtime.model.weights import Weights


def config_of(weights: Weights) -> dict[str, Any]:
    """The fields of transformers' LlamaConfig; ValueError if `state_dict` would lack the head."""
    config = weights.config
    if "head" in weights.tensors:
        raise ValueError(f"{weights.digest}: its head is not its embedding; measure a tied model")
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "intermediate_size": config.inner,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": True,
    }


def state_dict(weights: Weights) -> Iterator[tuple[str, Any]]:
    config, tensors = weights.config, weights.tensors
    mixed = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    yield "model.embed_tokens.weight", unpack(tensors["embedding"], config.vocab_size)
    yield "model.norm.weight", tensors["final_norm"]
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", tensors[f"{layer}.attention_norm"]
        yield prefix + "post_attention_layernorm.weight", tensors[f"{layer}.mlp_norm"]
        qkv = np.split(unpack(tensors[f"{layer}.qkv"], mixed + 2 * keys), [mixed, mixed + keys])
        for part, matrix in zip("qkv", qkv, strict=True):
            yield f"{prefix}self_attn.{part}_proj.weight", matrix
        yield (
            prefix + "self_attn.o_proj.weight",
            unpack(tensors[f"{layer}.attention_out"], config.hidden),
        )
        gate, up = unpack_gate_up(tensors[f"{layer}.gate_up"])
        yield prefix + "mlp.gate_proj.weight", gate
        yield prefix + "mlp.up_proj.weight", up
        yield prefix + "mlp.down_proj.weight", unpack(tensors[f"{layer}.down"], config.hidden)
