"""Understands Hugging Face's config.json of the Llama family; opens no file."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.errors import UnsupportedModel

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def model_config(
    folder: Path, raw: Mapping[str, Any], *, eos: int | list[int] | None, tied: bool
) -> ModelConfig:
    """`eos` as the generation config has it; `tied` by what tensors there are."""
    named = next(iter(raw.get("architectures", ["none"])))
    architecture = _ARCHITECTURES.get(named)
    if architecture is None:
        raise UnsupportedModel(
            f"{folder}: architecture {named} is not supported; "
            f"use one of {', '.join(_ARCHITECTURES)}"
        )
    if raw.get("mlp_bias") or (architecture != "qwen2" and raw.get("attention_bias")):
        raise UnsupportedModel(
            f"{folder}: mlp_bias and attention_bias are not supported; use a model without them"
        )
    if raw.get("sliding_window") and raw.get("use_sliding_window", True):
        raise UnsupportedModel(
            f"{folder}: sliding_window {raw['sliding_window']} is not supported; "
            "use a model that attends to its whole context"
        )
    heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
    head_dim = raw.get("head_dim") or hidden // heads
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))
    return ModelConfig(
        architecture=architecture,
        vocab_size=raw["vocab_size"],
        layers=raw["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        inner=raw["intermediate_size"],
        max_positions=raw["max_position_embeddings"],
        rope_theta=theta,
        rope_divisors=_rope_divisors(folder, rope, theta, head_dim),
        rms_epsilon=float(raw["rms_norm_eps"]),
        tied_embeddings=tied,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        bos_id=raw.get("bos_token_id"),
        eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )


def _rope_divisors(
    folder: Path, rope: Mapping[str, Any], theta: float, head_dim: int
) -> tuple[float, ...]:
    match rope.get("rope_type", rope.get("type", "default")):
        case "default":
            return ()
        case "linear":
            return (float(rope["factor"]),)
        case "llama3":
            return tuple(_llama3(rope, theta ** (-2 * i / head_dim)) for i in range(head_dim // 2))
        case kind:
            raise UnsupportedModel(
                f"{folder}: rope scaling {kind!r} is not supported; "
                "use a model with default, linear or llama3 rope"
            )


def _llama3(rope: Mapping[str, Any], frequency: float) -> float:
    """Llama 3 stretches slow rotations, keeps fast ones, and blends between the two."""
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = min(1.0, max(0.0, (turns - low) / (high - low)))
    # Rounded to what float32 holds: the last bits of a power may differ between machines.
    return float(f"{1 / ((1 - kept) / rope['factor'] + kept):.7g}")
