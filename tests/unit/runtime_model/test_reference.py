"""The kernels compute a Llama and its kin: compared with a plain one in float32 numpy, with the
same roundings.

Equality is up to the order of sums; a wrong rope, mask, head or layer would be off by whole units.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.packing import from_bf16, to_bf16
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.weights import open_weights

Floats = npt.NDArray[np.float32]
EPSILON, THETA, DIM = 1e-5, 10000.0, 32
PLAIN = THETA ** (-np.arange(0, DIM, 2) / DIM)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


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


def attend(q: Floats, k: Floats, v: Floats) -> Floats:
    count, heads, dim = q.shape
    k, v = (np.repeat(x, heads // k.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / dim**0.5
    scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Floats = np.einsum("hqk,khd->qhd", weights, v).reshape(count, heads * dim)
    return mixed


def llama(
    tensors: Mapping[str, Floats], tokens: list[int], frequencies: npt.NDArray[np.float64]
) -> Floats:
    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(6):
        prefix = f"model.layers.{layer}."
        w = {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        y = rounded(norm(x, w["input_layernorm.weight"]))
        heads = []
        for part in "qkv":
            made = y @ w[f"self_attn.{part}_proj.weight"].T
            made = made + w.get(f"self_attn.{part}_proj.bias", np.float32(0))
            made = made.reshape(len(tokens), -1, DIM)
            own_norm = w.get(f"self_attn.{part}_norm.weight")
            heads.append(made if own_norm is None else norm(made, own_norm))
        q, k, v = heads
        mixed = attend(rotate(q, frequencies), rounded(rotate(k, frequencies)), rounded(v))
        x = x + rounded(mixed) @ w["self_attn.o_proj.weight"].T
        y = rounded(norm(x, w["post_attention_layernorm.weight"]))
        gate, up = (y @ w[f"mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + rounded(gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    logits: Floats = rounded(norm(x, tensors["model.norm.weight"])) @ head.T
    return logits


def llama3_frequencies() -> npt.NDArray[np.float64]:
    """By wavelength, as the model's authors wrote it."""
    found = []
    for frequency in PLAIN:
        length = 2 * np.pi / frequency
        if length < 64 / 4.0:
            found.append(frequency)
        elif length > 64 / 1.0:
            found.append(frequency / 8.0)
        else:
            smooth = (64 / length - 1.0) / (4.0 - 1.0)
            found.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    return np.array(found)


@pytest.mark.parametrize("variant", ["avx2", "auto"])
@pytest.mark.parametrize(
    "scenario",
    [
        ({}, PLAIN),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, PLAIN),
        ({"architectures": ["Qwen2ForCausalLM"], "rope_theta": 10000.0}, PLAIN),
        ({"architectures": ["Qwen3ForCausalLM"]}, PLAIN),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, PLAIN / 4),
        ({"rope_scaling": LLAMA3}, llama3_frequencies()),
        ({"num_key_value_heads": 6}, PLAIN),
        ({"num_key_value_heads": 1}, PLAIN),
    ],
    ids=["llama", "mistral", "qwen2", "qwen3", "linear", "llama3", "all-heads", "one-head"],
)
def test_logits_are_those_of_a_plain_model(
    write_model: Callable[..., Path],
    random_tensors: Callable[..., dict[str, Floats]],
    tmp_path: Path,
    variant: str,
    scenario: tuple[dict[str, Any], npt.NDArray[np.float64]],
) -> None:
    changes, frequencies = scenario
    tokens = [int(t) for t in np.random.default_rng(2).integers(0, 301, 150)]
    weights = open_weights(str(write_model(tmp_path / "m", **changes)), cache_dir=tmp_path / "c")
    runner = CpuRunner(weights, num_blocks=3, threads=1, variant=variant)
    logits = runner.forward([Segment(tokens, 0, (2, 0, 1), "all")])
    assert not isinstance(logits, Interrupted)
    expected = llama(random_tensors(**changes), tokens, frequencies)
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits, expected, atol=0.2)
    assert np.abs(logits - expected).mean() < 0.015
