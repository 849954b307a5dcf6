"""Reads a Llama-family model from one GGUF file, by Hugging Face's names.

The header is parsed by `gguf_header`; the `gguf` library dequantises.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model import families, rope_scaling
from sojourn_runtime.model.config import Experts, ModelConfig
from sojourn_runtime.model.errors import UnsupportedModel, WeightsTruncated
from sojourn_runtime.model.gguf_header import (
    Header,
    TensorInfo,
    quantisation,
    read_header,
    tensor_bytes,
)
from sojourn_runtime.model.packing import Floats
from sojourn_runtime.model.rope_scaling import Scaling
from sojourn_runtime.model.source import TokenizerData

_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3", "phi3", "olmoe", "qwen2moe", "qwen3moe"})
_LAYER_NAMES = {
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
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_EXPERT = re.compile(r"experts\.(\d+)\.")
_ROPE_DIVISORS = "rope_freqs.weight"
_ENDS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "</s>"}
)


class GgufSource:
    """One GGUF file, its header read and its size checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size == 0:  # cannot be mapped
            raise WeightsTruncated(f"{path}: the file is empty; fetch the file again")
        self._data: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
        self._header = read_header(path, self._data)
        divisors: tuple[float, ...] = ()
        if _ROPE_DIVISORS in self._header.tensors:
            divisors = tuple(self._stored(_ROPE_DIVISORS).tolist())
        self.config = _config(path, self._header, divisors)

    def files(self) -> list[Path]:
        return [self.path]

    def tensor(self, name: str) -> Floats:
        whole, rows = families.fused(self.config, name)
        number = _EXPERT.search(whole)
        if number:  # all experts lie in one tensor
            whole = _EXPERT.sub("experts.", whole)
            return self._stored(_stored_name(whole), part=int(number[1]))
        values = self._stored(_stored_name(whole))[rows]
        if values.ndim == 1 and whole.endswith("shared_expert_gate.weight"):
            return values[None]
        if self.config.architecture != "llama":
            return values
        if ".q_proj." in name:
            return _split_halves(values, self.config.heads)
        if ".k_proj." in name:
            return _split_halves(values, self.config.kv_heads)
        return values

    def tokenizer(self) -> TokenizerData:
        from sojourn_runtime.model.gguf_tokenizer import build  # noqa: PLC0415 - needs `tokenizers`

        return build(self.path, self._header.meta)

    def _stored(self, name: str, *, part: int | None = None) -> Floats:
        """A tensor, or one matrix of those that it stacks."""
        from gguf.quants import dequantize  # noqa: PLC0415 - slow to import, needed once per model

        info = self._header.tensors.get(name)
        if info is None:
            raise UnsupportedModel(
                f"{self.path}: tensor {name} is missing; is this a Llama-family model?"
            )
        shape = info.shape if part is None else info.shape[1:]
        raw = self._bytes(info)
        try:
            values = dequantize(raw if part is None else raw[part], quantisation(info.kind))
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: {name} is quantised as {quantisation(info.kind).name}, "
                "which cannot be read; use Q8_0, Q4_K_M, Q4_1, F16 or BF16"
            ) from error
        return np.asarray(values, np.float32).reshape(shape)

    def _bytes(self, info: TensorInfo) -> npt.NDArray[Any]:
        """As the library wants them: numbers if they are plain, else rows of bytes."""
        begin = self._header.start + info.offset
        raw = self._data[begin : begin + tensor_bytes(info)]
        plain = {"F32": np.float32, "F16": np.float16}.get(quantisation(info.kind).name)
        return raw.view(plain).reshape(info.shape) if plain else raw.reshape(*info.shape[:-1], -1)


def _config(path: Path, header: Header, rope_divisors: tuple[float, ...]) -> ModelConfig:
    meta, tensors = header.meta, header.tensors
    architecture = meta.get("general.architecture", "")
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"{path}: architecture {architecture!r} is not supported; "
            f"use one of {', '.join(sorted(_ARCHITECTURES))}"
        )
    own = {
        key.removeprefix(architecture + "."): value
        for key, value in meta.items()
        if key.startswith(architecture + ".")
    }
    if own.get("attention.sliding_window") and architecture != "phi3":
        raise UnsupportedModel(
            f"{path}: sliding windows are not supported for {architecture} in GGUF, which does not "
            "say what layers have them; use safetensors"
        )
    if "rope_factors_long.weight" in tensors:
        raise UnsupportedModel(
            f"{path}: rope scaling 'longrope' is not supported; use a model without it"
        )
    try:
        heads, hidden = own["attention.head_count"], own["embedding_length"]
        head_dim = own.get("attention.key_length", hidden // heads)
        theta = float(own.get("rope.freq_base", 10000.0))
        scaling = _scaling(path, own, theta=theta, head_dim=head_dim)
        if own.get("rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedModel(
                f"{path}: rope over {own['rope.dimension_count']} of {head_dim} dimensions is not "
                "supported; use a model that rotates whole heads"
            )
        experts = _experts(architecture, own)
        window = own.get("attention.sliding_window", 0)
        windowed = 0 < window < own["context_length"]
        own_width = architecture in {"qwen2moe", "qwen3moe"}
        inner = own["expert_feed_forward_length" if own_width else "feed_forward_length"]
        return ModelConfig(
            architecture=architecture,
            vocab_size=tensors["token_embd.weight"].shape[0],
            layers=own["block_count"],
            hidden=hidden,
            heads=heads,
            kv_heads=own.get("attention.head_count_kv", heads),
            head_dim=head_dim,
            inner=inner,
            max_positions=own["context_length"],
            rope_theta=theta,
            rope_divisors=scaling.divisors or rope_divisors,
            attention_factor=scaling.attention_factor,
            windows=(window,) * own["block_count"] if windowed else (),
            rms_epsilon=float(own["attention.layer_norm_rms_epsilon"]),
            tied_embeddings="output.weight" not in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            attention_out_bias="blk.0.attn_output.bias" in tensors,
            qk_norm="blk.0.attn_q_norm.weight" in tensors,
            qk_norm_whole=architecture == "olmoe",
            experts=experts,
            bos_id=meta.get("tokenizer.ggml.bos_token_id"),
            eos_ids=_eos_ids(meta),
        )
    except KeyError as error:
        raise UnsupportedModel(
            f"{path}: the GGUF header lacks {error}; convert the model again"
        ) from error


def _experts(architecture: str, own: Mapping[str, Any]) -> Experts | None:
    if not own.get("expert_count"):
        return None
    return Experts(
        own["expert_count"],
        own["expert_used_count"],
        # Not in the header: llama.cpp too knows it by the architecture.
        normalised=architecture in {"llama", "qwen3moe"},
        shared_inner=own["expert_shared_feed_forward_length"] if architecture == "qwen2moe" else 0,
    )


def _scaling(path: Path, own: Mapping[str, Any], *, theta: float, head_dim: int) -> Scaling:
    match own.get("rope.scaling.type", "none"):
        case "none":
            return Scaling()
        case "linear":
            return rope_scaling.linear(float(own["rope.scaling.factor"]))
        case "yarn":
            factor = float(own["rope.scaling.factor"])
            # Here the attention factor multiplies yarn's own; in config.json it replaces it.
            sharper = own.get("rope.scaling.attn_factor", 1.0)
            return rope_scaling.yarn(
                theta,
                head_dim,
                factor=factor,
                original=own["rope.scaling.original_context_length"],
                attention_factor=sharper * rope_scaling.sharpness(factor),
                beta_fast=own.get("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=own.get("rope.scaling.yarn_beta_slow", 1.0),
            )
        case kind:
            raise UnsupportedModel(
                f"{path}: rope scaling {kind!r} is not supported; use a model without it"
            )


def _eos_ids(meta: dict[str, Any]) -> tuple[int, ...]:
    """Chat models end a turn with one token and a text with another; headers name one of them."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    named = {meta[key] for key in keys if key in meta}
    tokens = enumerate(meta.get("tokenizer.ggml.tokens", ()))
    return tuple(sorted(named | {number for number, token in tokens if token in _ENDS}))


def _stored_name(name: str) -> str:
    name, _, kind = name.rpartition(".")
    if name in _NAMES:
        return f"{_NAMES[name]}.{kind}"
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_LAYER_NAMES[rest]}.{kind}"


def _split_halves(values: Floats, heads: int) -> Floats:
    """Llama's GGUF keeps the two numbers that rope rotates together side by side; the kernels
    want them half a head apart.
    """
    pairs = values.reshape(heads, len(values) // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(values.shape)
