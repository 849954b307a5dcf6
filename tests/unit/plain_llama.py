"""A Llama and its kin in float32 numpy, plain, with the kernels' roundings: what they are compared
with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sojourn_runtime.model.packing import from_bf16, to_bf16
from sojourn_runtime.model.quantization import Kind

Floats = npt.NDArray[np.float32]
EPSILON, THETA, DIM = 1e-5, 10000.0, 32
TOKENS = [int(t) for t in np.random.default_rng(2).integers(0, 301, 150)]
PLAIN = THETA ** (-np.arange(0, DIM, 2) / DIM)


def rounded(values: Floats) -> Floats:
    return from_bf16(to_bf16(values))


def norm(x: Floats, weight: Floats) -> Floats:
    normed: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    return normed


def rotate(x: Floats, frequencies: npt.NDArray[np.float64]) -> Floats:
    """[positions, heads, dim], position 0 first."""
    count, _, dim = x.shape
    angles = np.outer(np.arange(count), frequencies)
    cosine, sine = (f(angles)[:, None].astype(np.float32) for f in (np.cos, np.sin))
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


def attend(q: Floats, k: Floats, v: Floats, *, scale: float, window: int) -> Floats:
    count, heads, dim = q.shape
    k, v = (np.repeat(x, heads // k.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    ago = np.arange(count)[:, None] - np.arange(count)
    scores[:, (ago < 0) | (ago >= window)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Floats = np.einsum("hqk,khd->qhd", weights, v).reshape(count, heads * dim)
    return mixed


Linear = Callable[[Floats, Floats], Floats]


def whole(values: Floats) -> tuple[Floats, Floats]:
    """Whole numbers up to 127 for each row, and the row's scale."""
    scales = np.abs(values).max(-1, keepdims=True) / np.float32(127)
    return np.rint(values / scales), scales


def plain(x: Floats, weight: Floats) -> Floats:
    product: Floats = x @ weight.T
    return product


def of_whole_weights(x: Floats, weight: Floats) -> Floats:
    numbers, scales = whole(weight)
    product: Floats = (x @ numbers.T) * scales.T
    return product


def of_whole_numbers(x: Floats, weight: Floats) -> Floats:
    rows, scales = whole(x)
    return of_whole_weights(rows, weight) * scales


LINEARS: dict[Kind, Linear] = {
    Kind.BF16: plain,
    Kind.W8A16: of_whole_weights,
    Kind.W8A8: of_whole_numbers,
}


@dataclass(frozen=True)
class Scenario:
    """Changes to the config, and what follows from them."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    frequencies: npt.NDArray[np.float64] = field(default_factory=lambda: PLAIN)
    windows: tuple[int, ...] = (999,) * 6
    scale: float = DIM**-0.5
    dim: int = DIM
    norm_whole: bool = False
    used: int = 0
    normalised: bool = False
    keep: Callable[[Floats], Floats] = rounded
    """What is left of the numbers between two steps."""


def mlp(x: Floats, w: Mapping[str, Floats], linear: Linear, scenario: Scenario) -> Floats:
    gates, ups = (linear(x, w[f"{part}_proj.weight"]) for part in ("gate", "up"))
    return linear(scenario.keep(gates / (1 + np.exp(-gates)) * ups), w["down_proj.weight"])


def under(prefix: str, w: Mapping[str, Floats]) -> dict[str, Floats]:
    return {n.removeprefix(prefix): value for n, value in w.items() if n.startswith(prefix)}


def experts(x: Floats, w: Mapping[str, Floats], scenario: Scenario) -> Floats:
    """Row by row and expert by expert, as the definition has it."""
    scores = x @ w["gate.weight"].T
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    total = np.zeros_like(x)
    for row, share in enumerate(shares):
        chosen = np.argsort(-share, kind="stable")[: scenario.used]
        whole = share[chosen].sum() if scenario.normalised else 1.0
        for number in chosen:
            made = mlp(x[row], under(f"experts.{number}.", w), plain, scenario)
            total[row] += share[number] / whole * made
    if "shared_expert_gate.weight" in w:
        weight = 1 / (1 + np.exp(-(x @ w["shared_expert_gate.weight"].T)))
        total += weight * mlp(x, under("shared_expert.", w), plain, scenario)
    return total


def llama(
    tensors: Mapping[str, Floats], tokens: list[int], scenario: Scenario, kind: Kind
) -> Floats:
    keep, linear, x = scenario.keep, LINEARS[kind], tensors["model.embed_tokens.weight"]
    if kind is not Kind.BF16 and "lm_head.weight" not in tensors:
        x = np.multiply(*whole(x))
    x = x[tokens]
    for layer in range(6):
        w = under(f"model.layers.{layer}.", tensors)
        y = keep(norm(x, w["input_layernorm.weight"]))
        heads = []
        for part in "qkv":
            made = linear(y, w[f"self_attn.{part}_proj.weight"])
            made = made + w.get(f"self_attn.{part}_proj.bias", np.float32(0))
            own_norm = w.get(f"self_attn.{part}_norm.weight")
            if own_norm is not None and scenario.norm_whole:
                made = norm(made, own_norm)
            made = made.reshape(len(tokens), -1, scenario.dim)
            if own_norm is not None and not scenario.norm_whole:
                made = norm(made, own_norm)
            heads.append(made)
        q, k = (rotate(part, scenario.frequencies) for part in heads[:2])
        window, scale = scenario.windows[layer], scenario.scale
        mixed = attend(q, keep(k), keep(heads[2]), scale=scale, window=window)
        x = x + linear(keep(mixed), w["self_attn.o_proj.weight"])
        x = x + w.get("self_attn.o_proj.bias", np.float32(0))
        y = keep(norm(x, w["post_attention_layernorm.weight"]))
        w = under("mlp.", w)
        x = x + (experts(y, w, scenario) if scenario.used else mlp(y, w, linear, scenario))
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return linear(keep(norm(x, tensors["model.norm.weight"])), head)
