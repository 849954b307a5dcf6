"""Reads a Llama-family model from one GGUF file, by Hugging Face's names.

The header is parsed by `gguf_header`; the `gguf` library dequantises.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.errors import UnsupportedModel, WeightsTruncated
from sojourn_runtime.model.gguf_header import (
    Header,
    TensorInfo,
    quantisation,
    read_header,
    tensor_bytes,
)
from sojourn_runtime.model.packing import Floats
from sojourn_runtime.model.source import TokenizerData

_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
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
}
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_ROPE_DIVISORS = "rope_freqs.weight"
_ENDS = frozenset({"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>"})


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
        values = self._stored(_stored_name(name))
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

    def _stored(self, name: str) -> Floats:
        from gguf.quants import dequantize  # noqa: PLC0415 - slow to import, needed once per model

        info = self._header.tensors.get(name)
        if info is None:
            raise UnsupportedModel(
                f"{self.path}: tensor {name} is missing; is this a Llama-family model?"
            )
        try:
            values = dequantize(self._bytes(info), quantisation(info.kind))
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: {name} is quantised as {quantisation(info.kind).name}, "
                "which cannot be read; use Q8_0, Q4_K_M, Q4_1, F16 or BF16"
            ) from error
        return np.asarray(values, np.float32).reshape(info.shape)

    def _bytes(self, info: TensorInfo) -> npt.NDArray[Any]:
        """As the library wants them: numbers if they are plain, else rows of bytes."""
        begin = self._header.start + info.offset
        raw = self._data[begin : begin + tensor_bytes(info)]
        plain = {"F32": np.float32, "F16": np.float16}.get(quantisation(info.kind).name)
        return raw.view(plain) if plain else raw.reshape(*info.shape[:-1], -1)


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
    scaling = own.get("rope.scaling.type", "none")
    if scaling == "linear":
        rope_divisors = (float(own["rope.scaling.factor"]),)
    elif scaling != "none":
        raise UnsupportedModel(
            f"{path}: rope scaling {scaling!r} is not supported; use a model without it"
        )
    if "expert_count" in own or "attention.sliding_window" in own:
        raise UnsupportedModel(
            f"{path}: experts and sliding windows are not supported; use a dense model without"
        )
    try:
        heads, hidden = own["attention.head_count"], own["embedding_length"]
        return ModelConfig(
            architecture=architecture,
            vocab_size=tensors["token_embd.weight"].shape[0],
            layers=own["block_count"],
            hidden=hidden,
            heads=heads,
            kv_heads=own.get("attention.head_count_kv", heads),
            head_dim=own.get("attention.key_length", hidden // heads),
            inner=own["feed_forward_length"],
            max_positions=own["context_length"],
            rope_theta=float(own.get("rope.freq_base", 10000.0)),
            rope_divisors=rope_divisors,
            rms_epsilon=float(own["attention.layer_norm_rms_epsilon"]),
            tied_embeddings="output.weight" not in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            qk_norm="blk.0.attn_q_norm.weight" in tensors,
            bos_id=meta.get("tokenizer.ggml.bos_token_id"),
            eos_ids=_eos_ids(meta),
        )
    except KeyError as error:
        raise UnsupportedModel(
            f"{path}: the GGUF header lacks {error}; convert the model again"
        ) from error


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
