"""Writes tiny models as GGUF files, as llama.cpp's converter does."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[np.float32]]
Q8 = gguf.GGMLQuantizationType.Q8_0
EXPERTS = {"expert_count": 5, "expert_used_count": 2}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LAYER |= {
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def interleave_halves(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """What llama.cpp's converter does to queries and keys."""
    halves = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def stored_name(name: str) -> str:
    name, _, kind = name.rpartition(".")
    if name in TOP:
        return f"{TOP[name]}.{kind}"
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER[rest]}.{kind}"


def stacked(tensors: Tensors) -> dict[str, npt.NDArray[np.float32]]:
    """The matrices of all experts in one tensor, and the shared expert's gate as a vector."""
    found: dict[str, Any] = {}
    for name, values in tensors.items():
        joined = re.sub(r"experts\.\d+\.", "experts.", name)
        if joined != name:
            found.setdefault(joined, []).append(values)
        else:
            found[name] = values[0] if "shared_expert_gate" in name else values
    return {name: np.asarray(values) for name, values in found.items()}


def write_gguf(path: Path, tensors: Tensors, *, architecture: str = "llama", **extra: Any) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(6)
    writer.add_embedding_length(80)
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_key_length(32)
    writer.add_feed_forward_length(112)
    writer.add_context_length(640)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    alphabet = [f"<{number}>" for number in range(298)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(extra.get("pre", "smollm"))
    writer.add_token_list(["h", "i", "hi", *alphabet])
    writer.add_token_types([1, 1, 1, *[3] * 298])
    writer.add_token_merges(["h i"])
    writer.add_eos_token_id(2)
    if "rope" in extra:
        writer.add_rope_scaling_type(extra["rope"])
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)
    for add, number in extra.get("numbers", {}).items():
        getattr(writer, f"add_{add}")(number)
    for name, values in stacked(tensors).items():
        kept = values
        if architecture == "llama" and "q_proj" in name:
            kept = interleave_halves(values, 6)
        elif architecture == "llama" and "k_proj" in name:
            kept = interleave_halves(values, 2)
        if name == extra.get("quantised"):
            kind = extra.get("kind", Q8)
            raw = extra["raw"] if "raw" in extra else gguf.quants.quantize(kept, kind)
            writer.add_tensor(stored_name(name), raw, raw_dtype=kind)
            continue
        writer.add_tensor(stored_name(name), kept)
    if "divisors" in extra:
        writer.add_tensor("rope_freqs.weight", np.array(extra["divisors"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
