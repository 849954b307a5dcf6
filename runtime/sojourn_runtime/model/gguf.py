"""Reads a Llama-family model from one GGUF file.

The header is parsed here, because the `gguf` library takes seconds for it and does not say
whether a file is complete; its dequantisation is used as it is.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.errors import UnsupportedModel, WeightsTruncated
from sojourn_runtime.model.packing import Floats
from sojourn_runtime.model.source import TokenizerData

MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {
    10: "<Q",
    11: "<q",
    12: "<d",
}

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_ENDS = frozenset({"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>"})
_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    shape: tuple[int, ...]
    """Rows first, as numpy has it."""
    kind: int
    offset: int


class _Cursor:
    """Reads the header's little-endian values one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    def scalar(self, form: str) -> Any:
        value = struct.unpack_from(form, self._data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        raw = bytes(self._data[self.at : self.at + length])
        if len(raw) != length:
            raise struct.error("string beyond the end")
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            if inner == _STRING:
                return [self.string() for _ in range(count)]
            values = np.frombuffer(self._data, np.dtype(_SCALARS[inner]), count, self.at)
            self.at += values.nbytes
            return values.tolist()
        return self.scalar(_SCALARS[kind])


class GgufSource:
    """One GGUF file, its header read and its size checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
            self._meta, self._tensors, self._start = _header(self._data.data)
        except (struct.error, ValueError, IndexError) as error:
            raise WeightsTruncated(
                f"{path}: the GGUF header is incomplete ({error}); fetch the file again"
            ) from error
        self._check_size()
        self.config = _config(path, self._meta, self._tensors)

    def files(self) -> list[Path]:
        return [self.path]

    def tensor(self, name: str) -> Floats:
        from gguf.quants import dequantize  # noqa: PLC0415 - slow to import, needed once per model

        stored = _stored_name(name)
        info = self._tensors.get(stored)
        if info is None:
            raise UnsupportedModel(
                f"{self.path}: tensor {stored} is missing; is this a Llama-family model?"
            )
        raw = self._bytes(info)
        try:
            values = dequantize(raw, _quantisation(info.kind))
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: {stored} is quantised as {_quantisation(info.kind).name}, "
                "which cannot be read; use Q8_0, Q4_K_M, Q4_1, F16 or BF16"
            ) from error
        values = np.asarray(values, np.float32).reshape(info.shape)
        if name.endswith("q_proj.weight"):
            return _split_halves(values, self.config.heads)
        if name.endswith("k_proj.weight"):
            return _split_halves(values, self.config.kv_heads)
        return values

    def tokenizer(self) -> TokenizerData:
        from sojourn_runtime.model.gguf_tokenizer import build  # noqa: PLC0415 - needs `tokenizers`

        return build(self.path, self._meta)

    def _bytes(self, info: _TensorInfo) -> npt.NDArray[Any]:
        size = _tensor_bytes(info)
        raw = self._data[self._start + info.offset : self._start + info.offset + size]
        kind = _quantisation(info.kind)
        if kind.name == "F32":
            return raw.view(np.float32)
        if kind.name == "F16":
            return raw.view(np.float16)
        return raw.reshape(*info.shape[:-1], -1)

    def _check_size(self) -> None:
        needed = max(
            (self._start + t.offset + _tensor_bytes(t) for t in self._tensors.values()), default=0
        )
        if self._data.nbytes < needed:
            raise WeightsTruncated(
                f"{self.path}: {self._data.nbytes} bytes, but its header promises {needed}; "
                "fetch the file again"
            )


def _header(data: memoryview) -> tuple[dict[str, Any], dict[str, _TensorInfo], int]:
    cursor = _Cursor(data)
    if bytes(data[:4]) != MAGIC:
        raise struct.error("no GGUF magic")
    cursor.at = 4
    version = cursor.scalar("<I")
    if version not in {2, 3}:
        raise UnsupportedModel(
            f"GGUF version {version} is not supported; convert the model to version 3"
        )
    tensor_count, pair_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    meta = {cursor.string(): cursor.value(cursor.scalar("<I")) for _ in range(pair_count)}
    tensors = {}
    for _ in range(tensor_count):
        name, dimensions = cursor.string(), cursor.scalar("<I")
        shape = tuple(reversed([cursor.scalar("<Q") for _ in range(dimensions)]))
        tensors[name] = _TensorInfo(
            shape=shape, kind=cursor.scalar("<I"), offset=cursor.scalar("<Q")
        )
    alignment = meta.get("general.alignment", 32)
    return meta, tensors, -(-cursor.at // alignment) * alignment


def _config(path: Path, meta: dict[str, Any], tensors: dict[str, _TensorInfo]) -> ModelConfig:
    architecture = meta.get("general.architecture", "")
    if architecture != "llama":
        raise UnsupportedModel(
            f"{path}: architecture {architecture!r} is not supported; "
            "use a model of the Llama family"
        )
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensors:
        raise UnsupportedModel(
            f"{path}: rope scaling {scaling!r} is not supported; use a model without it"
        )
    if "llama.expert_count" in meta:
        raise UnsupportedModel(
            f"{path}: mixture-of-experts models are not supported; use a dense model"
        )
    try:
        heads, hidden = meta["llama.attention.head_count"], meta["llama.embedding_length"]
        return ModelConfig(
            architecture="llama",
            vocab_size=tensors["token_embd.weight"].shape[0],
            layers=meta["llama.block_count"],
            hidden=hidden,
            heads=heads,
            kv_heads=meta.get("llama.attention.head_count_kv", heads),
            head_dim=meta.get("llama.attention.key_length", hidden // heads),
            inner=meta["llama.feed_forward_length"],
            max_positions=meta["llama.context_length"],
            rope_theta=float(meta.get("llama.rope.freq_base", 10000.0)),
            rms_epsilon=float(meta["llama.attention.layer_norm_rms_epsilon"]),
            tied_embeddings="output.weight" not in tensors,
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
    if name in _NAMES:
        return _NAMES[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_LAYER_NAMES[rest]}"


def _split_halves(weight: Floats, heads: int) -> Floats:
    """GGUF keeps the two numbers that rope rotates together side by side; the kernels want them
    half a head apart.
    """
    outputs, inputs = weight.shape
    pairs = weight.reshape(heads, outputs // heads // 2, 2, inputs)
    return pairs.swapaxes(1, 2).reshape(outputs, inputs)


def _quantisation(kind: int) -> Any:
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415

    try:
        return GGMLQuantizationType(kind)
    except ValueError as error:
        raise UnsupportedModel(
            f"GGUF tensor type {kind} is unknown; use Q8_0, Q4_K_M, F16 or BF16"
        ) from error


def _tensor_bytes(info: _TensorInfo) -> int:
    from gguf.constants import GGML_QUANT_SIZES  # noqa: PLC0415

    elements, size = GGML_QUANT_SIZES[_quantisation(info.kind)]
    count = int(np.prod(info.shape, dtype=np.int64))
    return count // int(elements) * int(size)
