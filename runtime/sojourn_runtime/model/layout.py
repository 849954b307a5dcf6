"""Which tensors the kernels want of a model, in what shape, and how each is made from a source.

The order here is the order in the converted file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import Experts, ModelConfig
from sojourn_runtime.model.packing import DTYPES, PACK, gate_up_rows, packed_shape
from sojourn_runtime.model.quantization import HEAD, Kind, Kinds
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


def parts(config: ModelConfig, kinds: Kinds) -> Iterator[Part]:
    """Every tensor of a model with this config, its linears in these kinds."""
    hidden, vocab = config.hidden, config.vocab_size
    tied = kinds[HEAD] if config.tied_embeddings else Kind.BF16
    yield _matrix("embedding", vocab, hidden, tied, "model.embed_tokens.weight")
    yield _vector("final_norm", hidden, "model.norm.weight")
    if not config.tied_embeddings:
        yield _matrix(HEAD, vocab, hidden, kinds[HEAD], "lm_head.weight")
    for layer in range(config.layers):
        yield from _layer(config, kinds, layer)


def _layer(config: ModelConfig, kinds: Kinds, layer: int) -> Iterator[Part]:
    hidden, attention = config.hidden, config.heads * config.head_dim
    fused = attention + 2 * config.kv_heads * config.head_dim
    prefix = f"model.layers.{layer}."

    def matrix(part: str, outputs: int, inputs: int, *source_names: str) -> Part:
        name = f"{layer}.{part}"
        return _matrix(name, outputs, inputs, kinds[name], *(prefix + n for n in source_names))

    yield _vector(f"{layer}.attention_norm", hidden, prefix + "input_layernorm.weight")
    yield matrix("qkv", fused, hidden, *(f"self_attn.{part}_proj.weight" for part in "qkv"))
    if config.qkv_bias:
        biases = [f"{prefix}self_attn.{part}_proj.bias" for part in "qkv"]
        yield _vector(f"{layer}.qkv_bias", fused, *biases)
    if config.qk_norm:
        for part, heads in (("q", config.heads), ("k", config.kv_heads)):
            size = config.head_dim * (heads if config.qk_norm_whole else 1)
            source_name = f"{prefix}self_attn.{part}_norm.weight"
            yield _vector(f"{layer}.{part}_norm", size, source_name)
    yield matrix("attention_out", hidden, attention, "self_attn.o_proj.weight")
    if config.attention_out_bias:
        yield _vector(f"{layer}.attention_out_bias", hidden, prefix + "self_attn.o_proj.bias")
    yield _vector(f"{layer}.mlp_norm", hidden, prefix + "post_attention_layernorm.weight")
    if config.experts:
        yield from _experts(config, config.experts, layer, prefix + "mlp.")
        return
    yield _gate_up(
        f"{layer}.gate_up", config.inner, hidden, kinds[f"{layer}.gate_up"], prefix + "mlp."
    )
    yield matrix("down", hidden, config.inner, "mlp.down_proj.weight")


def _experts(config: ModelConfig, experts: Experts, layer: int, prefix: str) -> Iterator[Part]:
    """The router, and the experts' matrices one behind the other, each in whole panels."""
    hidden, inner = config.hidden, config.inner
    own = [f"{prefix}experts.{number}." for number in range(experts.count)]
    gates = [prefix + "gate.weight"]
    if experts.shared_inner:
        shared = prefix + "shared_expert."
        gates.append(prefix + "shared_expert_gate.weight")
        yield _gate_up(f"{layer}.shared_gate_up", experts.shared_inner, hidden, Kind.BF16, shared)
        name = f"{layer}.shared_down"
        yield _matrix(name, hidden, experts.shared_inner, Kind.BF16, shared + "down_proj.weight")
    outputs = experts.count + len(gates) - 1
    yield _matrix(f"{layer}.router", outputs, hidden, Kind.BF16, *gates)
    yield _joined(
        f"{layer}.gate_up", [_gate_up("", inner, hidden, Kind.BF16, each) for each in own]
    )
    yield _joined(
        f"{layer}.down",
        [_matrix("", hidden, inner, Kind.BF16, each + "down_proj.weight") for each in own],
    )


def _joined(name: str, same: list[Part]) -> Part:
    """Parts of one shape, one behind the other."""
    first, *rest = same[0].shape

    def make(source: WeightsSource) -> Array:
        return np.concatenate([part.make(source) for part in same])

    return Part(name, same[0].dtype, (len(same) * first, *rest), make)


def _vector(name: str, size: int, *source_names: str) -> Part:
    def make(source: WeightsSource) -> Array:
        return np.concatenate([source.tensor(part) for part in source_names])

    return Part(name, "float32", (size,), make)


def _matrix(name: str, outputs: int, inputs: int, kind: Kind, *source_names: str) -> Part:
    def make(source: WeightsSource) -> Array:
        return PACK[kind](np.concatenate([source.tensor(part) for part in source_names]))

    return Part(name, DTYPES[kind], packed_shape(outputs, inputs, kind), make)


def _gate_up(name: str, inner: int, inputs: int, kind: Kind, prefix: str) -> Part:
    def make(source: WeightsSource) -> Array:
        gate, up = (source.tensor(f"{prefix}{part}_proj.weight") for part in ("gate", "up"))
        return PACK[kind](gate_up_rows(gate, up))

    return Part(name, DTYPES[kind], packed_shape(2 * inner, inputs, kind), make)
