"""The shape of a Llama-family model, as plain values.

Read from GGUF or from Hugging Face's config.json by `gguf` and `safetensors`; nothing here
opens a file.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

from sojourn_api.weights import Numbers

from sojourn_runtime.model.errors import UnsupportedModel

BLOCK_TOKENS = 64
"""Tokens of one KV block; also the attention's tile, so it is part of the kernel class."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Every token takes `used` of `count` experts, and one of width `shared_inner` besides
    (0: there is none).
    """

    count: int
    used: int
    normalised: bool
    """Whether the weights of those used sum up to one."""
    shared_inner: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`inner` is the width of the MLP, or of one expert; `rope_theta` the base of the rotary
    frequencies.
    """

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
    attention_factor: float = 1.0
    """What yarn multiplies queries and keys with."""
    windows: tuple[int, ...] = ()
    """How many positions a row sees in each layer, its own among them. Empty: all."""
    qkv_bias: bool = False
    attention_out_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    """The norm takes all heads as one vector, not each for itself."""
    experts: Experts | None = None

    def __post_init__(self) -> None:
        limits = (
            ("hidden size", self.hidden, 16),
            ("MLP size", self.inner, 16),
            ("head dimension", self.head_dim, 32),
            ("shared expert's size", self.experts.shared_inner if self.experts else 0, 16),
        )
        for name, value, multiple in limits:
            if value % multiple:
                raise UnsupportedModel(
                    f"{name} {value} is no multiple of {multiple}, which the kernels need; "
                    "use another model"
                )
        if self.experts and not 0 < self.experts.used <= self.experts.count:
            raise UnsupportedModel(
                f"{self.experts.used} of {self.experts.count} experts for each token cannot be; "
                "fetch the model again"
            )
        if self.heads % self.kv_heads or self.head_dim > 256:
            raise UnsupportedModel(
                f"{self.heads} heads over {self.kv_heads} key heads of dimension {self.head_dim}: "
                "key heads must divide the heads, a head holds at most 256; use another model"
            )

    @property
    def score_scale(self) -> float:
        """What the product of a query and a key is multiplied with."""
        return self.attention_factor * self.attention_factor / math.sqrt(self.head_dim)

    def window(self, layer: int) -> int:
        """How many positions a row of this layer sees at most."""
        return self.windows[layer] if self.windows else self.max_positions

    @property
    def kv_bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * 2

    @property
    def block_bytes(self) -> int:
        return self.kv_bytes_per_token * BLOCK_TOKENS

    def numbers(self, *, weight_bytes: int) -> Numbers:
        """What an LLMModel says of these weights, which take so many bytes in memory."""
        return Numbers(
            weight_bytes=weight_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            context_length=self.max_positions,
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        lists = {k: tuple(value.get(k, ())) for k in ("eos_ids", "rope_divisors", "windows")}
        experts = Experts(**value["experts"]) if value.get("experts") else None
        return cls(**{**value, **lists, "experts": experts})
