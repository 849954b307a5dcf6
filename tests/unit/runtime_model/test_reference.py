"""The kernels compute a Llama: compared with a plain one in float32 numpy, with the same roundings.

Equality is up to the order of sums; a wrong rope, mask, head or layer would be off by whole units.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.packing import from_bf16, to_bf16
from sojourn_runtime.model.protocol import Interrupted, Segment

Floats = npt.NDArray[np.float32]
NewRunner = Callable[..., CpuRunner]
EPSILON, THETA = 1e-5, 10000.0


def rounded(values: Floats) -> Floats:
    return from_bf16(to_bf16(values))


def norm(x: Floats, weight: Floats) -> Floats:
    normed: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    return normed


def rotate(x: Floats) -> Floats:
    """[positions, heads, dim], position 0 first."""
    count, _, dim = x.shape
    angles = np.outer(np.arange(count), THETA ** (-np.arange(0, dim, 2) / dim))
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


def llama(tensors: Mapping[str, Floats], tokens: list[int], *, layers: int, dim: int) -> Floats:
    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(layers):
        w = {
            name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): value
            for name, value in tensors.items()
        }
        y = rounded(norm(x, w["input_layernorm"]))
        q, k, v = (
            (y @ w[f"self_attn.{part}_proj"].T).reshape(len(tokens), -1, dim) for part in "qkv"
        )
        mixed = attend(rotate(q), rounded(rotate(k)), rounded(v))
        x = x + rounded(mixed) @ w["self_attn.o_proj"].T
        y = rounded(norm(x, w["post_attention_layernorm"]))
        gate, up = (y @ w[f"mlp.{part}_proj"].T for part in ("gate", "up"))
        x = x + rounded(gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj"].T
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    logits: Floats = rounded(norm(x, tensors["model.norm.weight"])) @ head.T
    return logits


@pytest.mark.parametrize("variant", ["avx2", "auto"])
def test_logits_are_those_of_a_plain_llama(
    new_runner: NewRunner, tiny_tensors: Mapping[str, Floats], variant: str
) -> None:
    tokens = [int(t) for t in np.random.default_rng(2).integers(0, 301, 150)]
    logits = new_runner(variant=variant).forward([Segment(tokens, 0, (2, 0, 1), "all")])
    assert not isinstance(logits, Interrupted)
    expected = llama(tiny_tensors, tokens, layers=6, dim=32)
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits, expected, atol=0.15)
    assert np.abs(logits - expected).mean() < 0.015
