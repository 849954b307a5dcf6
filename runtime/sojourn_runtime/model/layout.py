"""Which tensors the kernels want of a model, in what shape, and how each is made from a source.

The order here is the order in the converted file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.packing import PANEL, gate_up_panels, panels
from sojourn_runtime.model.source import WeightsSource

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the converted file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[WeightsSource], Array]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def parts(config: ModelConfig) -> Iterator[Part]:
    """Every tensor of a model with this config."""
    hidden, attention = config.hidden, config.heads * config.head_dim
    fused = attention + 2 * config.kv_heads * config.head_dim
    yield _matrix("embedding", config.vocab_size, hidden, "model.embed_tokens.weight")
    yield _vector("final_norm", hidden, "model.norm.weight")
    if not config.tied_embeddings:
        yield _matrix("head", config.vocab_size, hidden, "lm_head.weight")
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        yield _vector(f"{layer}.attention_norm", hidden, prefix + "input_layernorm.weight")
        qkv = [f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"]
        yield _matrix(f"{layer}.qkv", fused, hidden, *qkv)
        if config.qkv_bias:
            biases = [f"{prefix}self_attn.{part}_proj.bias" for part in "qkv"]
            yield _vector(f"{layer}.qkv_bias", fused, *biases)
        if config.qk_norm:
            for part in "qk":
                source_name = f"{prefix}self_attn.{part}_norm.weight"
                yield _vector(f"{layer}.{part}_norm", config.head_dim, source_name)
        yield _matrix(
            f"{layer}.attention_out", hidden, attention, prefix + "self_attn.o_proj.weight"
        )
        yield _vector(f"{layer}.mlp_norm", hidden, prefix + "post_attention_layernorm.weight")
        yield _gate_up(f"{layer}.gate_up", config, prefix)
        yield _matrix(f"{layer}.down", hidden, config.inner, prefix + "mlp.down_proj.weight")


def _vector(name: str, size: int, *source_names: str) -> Part:
    def make(source: WeightsSource) -> Array:
        return np.concatenate([source.tensor(part) for part in source_names])

    return Part(name, "float32", (size,), make)


def _matrix(name: str, outputs: int, inputs: int, *source_names: str) -> Part:
    def make(source: WeightsSource) -> Array:
        return panels(np.concatenate([source.tensor(part) for part in source_names]))

    return Part(name, "uint16", (-(-outputs // PANEL), inputs, PANEL), make)


def _gate_up(name: str, config: ModelConfig, prefix: str) -> Part:
    def make(source: WeightsSource) -> Array:
        return gate_up_panels(
            source.tensor(prefix + "mlp.gate_proj.weight"),
            source.tensor(prefix + "mlp.up_proj.weight"),
        )

    return Part(name, "uint16", (config.inner // 16, config.hidden, PANEL), make)
