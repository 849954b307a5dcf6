"""The shape of a Llama-family model, as plain values.

Read from GGUF or from Hugging Face's config.json by `gguf` and `safetensors`; nothing here
opens a file.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from sojourn_runtime.model.errors import UnsupportedModel

BLOCK_TOKENS = 64
"""Tokens of one KV block; also the attention's tile, so it is part of the kernel class."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`inner` is the width of the MLP; `rope_theta` the base of the rotary frequencies."""

    architecture: str
    vocab_size: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    max_positions: int
    rope_theta: float
    rms_epsilon: float
    tied_embeddings: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    rope_divisors: tuple[float, ...] = ()
    """What each frequency is divided by: one for all, or one each. Empty: plain rope."""
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        limits = (
            ("hidden size", self.hidden, 16),
            ("MLP size", self.inner, 16),
            ("head dimension", self.head_dim, 32),
        )
        for name, value, multiple in limits:
            if value % multiple:
                raise UnsupportedModel(
                    f"{name} {value} is no multiple of {multiple}, which the kernels need; "
                    "use another model"
                )
        if self.heads % self.kv_heads or self.head_dim > 256:
            raise UnsupportedModel(
                f"{self.heads} heads over {self.kv_heads} key heads of dimension {self.head_dim}: "
                "key heads must divide the heads, a head holds at most 256; use another model"
            )

    @property
    def kv_bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * 2

    @property
    def block_bytes(self) -> int:
        return self.kv_bytes_per_token * BLOCK_TOKENS

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        lists = {key: tuple(value[key]) for key in ("eos_ids", "rope_divisors")}
        return cls(**{**value, **lists})
