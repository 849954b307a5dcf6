"""Understands Hugging Face's config.json of the Llama family and its kin with experts; opens no
file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn_runtime.model import rope_scaling
from sojourn_runtime.model.config import Experts, ModelConfig
from sojourn_runtime.model.errors import UnsupportedModel
from sojourn_runtime.model.rope_scaling import Scaling

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "MixtralForCausalLM": "mixtral",
    "OlmoeForCausalLM": "olmoe",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
}
_QWEN2 = frozenset({"qwen2", "qwen2moe"})
_BIAS_IF_SAID = frozenset({"llama", "qwen3", "qwen3moe", "olmoe"})
_WINDOW_ALWAYS = frozenset({"mistral", "mixtral", "phi3"})
_WINDOW_IF_USED = frozenset({"qwen2", "qwen3", "qwen2moe", "qwen3moe"})


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
    _refuse_what_is_unknown(folder, raw, architecture)
    heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
    head_dim = raw.get("head_dim") or hidden // heads
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))
    original = rope.get("original_max_position_embeddings", raw["max_position_embeddings"])
    scaling = _scaling(folder, rope, theta=theta, head_dim=head_dim, original=original)
    biased = architecture in _BIAS_IF_SAID and bool(raw.get("attention_bias"))
    own_width = architecture in {"qwen2moe", "qwen3moe"}
    return ModelConfig(
        architecture=architecture,
        vocab_size=raw["vocab_size"],
        layers=raw["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        inner=raw["moe_intermediate_size" if own_width else "intermediate_size"],
        max_positions=_max_positions(raw, rope, original),
        rope_theta=theta,
        rope_divisors=scaling.divisors,
        attention_factor=scaling.attention_factor,
        windows=_windows(folder, architecture, raw),
        rms_epsilon=float(raw["rms_norm_eps"]),
        tied_embeddings=tied,
        qkv_bias=(architecture in _QWEN2 and raw.get("qkv_bias", True)) or biased,
        attention_out_bias=biased,
        qk_norm=architecture in {"qwen3", "qwen3moe", "olmoe"},
        qk_norm_whole=architecture == "olmoe",
        experts=_experts(architecture, raw),
        bos_id=raw.get("bos_token_id"),
        eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )


def _refuse_what_is_unknown(folder: Path, raw: Mapping[str, Any], architecture: str) -> None:
    if raw.get("mlp_bias"):
        raise UnsupportedModel(f"{folder}: mlp_bias is not supported; use a model without it")
    if raw.get("attention_bias") and architecture not in _BIAS_IF_SAID | _QWEN2:
        raise UnsupportedModel(
            f"{folder}: attention_bias is not supported for {architecture}; use a model without it"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(
            f"{folder}: activation {raw['hidden_act']!r} is not supported; use a model with silu"
        )
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        raise UnsupportedModel(
            f"{folder}: layers without experts beside layers with them (mlp_only_layers, "
            "decoder_sparse_step) are not supported; use a model with experts in every layer"
        )
    rope = raw.get("rope_parameters") or {}
    rotated = raw.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0
    if rotated != 1.0:
        raise UnsupportedModel(
            f"{folder}: partial_rotary_factor {rotated} is not supported; "
            "use a model that rotates whole heads"
        )
    if raw.get("clip_qkv") is not None:
        raise UnsupportedModel(f"{folder}: clip_qkv is not supported; use a model without it")


def _max_positions(raw: Mapping[str, Any], rope: Mapping[str, Any], original: int) -> int:
    """Qwen's configs with yarn still name the length before it."""
    given: int = raw["max_position_embeddings"]
    yarn = rope.get("rope_type", rope.get("type")) == "yarn"
    return max(given, int(original * rope["factor"])) if yarn else given


def _experts(architecture: str, raw: Mapping[str, Any]) -> Experts | None:
    if architecture == "mixtral":
        return Experts(raw["num_local_experts"], raw["num_experts_per_tok"], normalised=True)
    if not architecture.endswith("moe"):
        return None
    count = raw.get("num_experts") or raw["num_local_experts"]
    return Experts(
        count,
        raw["num_experts_per_tok"],
        normalised=raw.get("norm_topk_prob", False),
        shared_inner=raw["shared_expert_intermediate_size"] if architecture == "qwen2moe" else 0,
    )


def _windows(folder: Path, architecture: str, raw: Mapping[str, Any]) -> tuple[int, ...]:
    layers: int = raw["num_hidden_layers"]
    whole: int = raw["max_position_embeddings"]
    window: int | None = raw.get("sliding_window")
    if architecture in _WINDOW_IF_USED and not raw.get("use_sliding_window", False):
        return ()
    if not window or window >= whole:
        return ()
    if architecture in _WINDOW_ALWAYS or architecture == "qwen3moe":
        return (window,) * layers
    if architecture in _WINDOW_IF_USED and "layer_types" in raw:
        return tuple(
            window if kind == "sliding_attention" else whole for kind in raw["layer_types"]
        )
    if architecture in {"qwen2", "qwen3"}:
        first = raw.get("max_window_layers", 28)
        return tuple(window if layer >= first else whole for layer in range(layers))
    raise UnsupportedModel(
        f"{folder}: sliding_window {window} is not supported for {architecture} without "
        "layer_types; use a model that attends to its whole context, or add them"
    )


def _scaling(
    folder: Path, rope: Mapping[str, Any], *, theta: float, head_dim: int, original: int
) -> Scaling:
    kind = rope.get("rope_type", rope.get("type", "default"))
    match "longrope" if "short_factor" in rope else kind:  # Phi-3's configs had other names for it
        case "default":
            return Scaling()
        case "linear":
            return rope_scaling.linear(float(rope["factor"]))
        case "llama3":
            return rope_scaling.llama3(
                theta,
                head_dim,
                factor=rope["factor"],
                low=rope["low_freq_factor"],
                high=rope["high_freq_factor"],
                original=original,
            )
        case "yarn":
            return _yarn(rope, theta=theta, head_dim=head_dim, original=original)
        case other:
            raise UnsupportedModel(
                f"{folder}: rope scaling {other!r} is not supported; "
                "use a model with default, linear, llama3 or yarn rope"
            )


def _yarn(rope: Mapping[str, Any], *, theta: float, head_dim: int, original: int) -> Scaling:
    factor, sharp = float(rope["factor"]), rope.get("attention_factor")
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    if sharp is None and over and under:
        sharp = rope_scaling.sharpness(factor, over) / rope_scaling.sharpness(factor, under)
    return rope_scaling.yarn(
        theta,
        head_dim,
        factor=factor,
        original=original,
        attention_factor=sharp,
        beta_fast=rope.get("beta_fast") or 32.0,
        beta_slow=rope.get("beta_slow") or 1.0,
        truncate=rope.get("truncate", True),
    )
