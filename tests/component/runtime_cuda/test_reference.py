"""The CUDA kernels compute what plain torch does in fp64, up to their roundings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sojourn_runtime.model.protocol import Interrupted, Segment

torch = pytest.importorskip("torch")
from sojourn_runtime.model.cuda import ops  # noqa: E402 - behind the fixture's environment
from sojourn_runtime.model.cuda.inputs import gather  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]  # an interpreter takes its time


def bf16(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).bfloat16()


def close(found: Any, expected: Any, *, share: float) -> bool:
    """Within a share of the greatest value."""
    difference = (found.double().cpu() - expected).abs().max()
    return bool(difference <= share * expected.abs().max())


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 64), (65, 200, 70), (3, 17, 5)])
def test_linear(place: Any, rows: int, inputs: int, outputs: int) -> None:
    x, weight = bf16(rows, inputs), bf16(outputs, inputs, seed=1)
    bias, residual = torch.rand(outputs), torch.rand(rows, outputs)
    expected = x.double() @ weight.double().T
    on = (x.to(place), weight.to(place))
    assert close(ops.linear(*on), expected, share=2**-8)
    assert close(ops.linear(*on, floats=True), expected, share=1e-5)
    both = ops.linear(*on, bias=bias.to(place), residual=residual.to(place))
    assert close(both, expected + bias + residual, share=1e-5)


def test_a_row_of_a_linear_does_not_depend_on_its_neighbours_or_its_place(place: Any) -> None:
    x, weight = bf16(66, 112).to(place), bf16(80, 112, seed=1).to(place)
    whole = ops.linear(x, weight)
    for first in (0, 5, 33):
        for rows in (1, 2, 8, 33):
            some = ops.linear(x[first : first + rows].contiguous(), weight)
            assert torch.equal(some, whole[first : first + rows])


def test_norm(place: Any) -> None:
    x, weight = torch.randn(5, 80), torch.rand(80)
    wide = x.double()
    expected = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    assert close(ops.norm(x.to(place), weight.to(place), epsilon=1e-5), expected, share=2**-8)


def test_gated(place: Any) -> None:
    both = bf16(3, 2 * 1100)
    gate, up = both.double().chunk(2, dim=-1)
    expected = gate * gate.sigmoid() * up
    assert close(ops.gated(both.to(place)), expected, share=2**-8)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_attention(place: Any, new_runner: Callable[..., Any], head_dim: int) -> None:
    """A chunk of one sequence beside a token of another, grouped heads, two splits."""
    config = new_runner(head_dim=head_dim, heads=6, kv_heads=2).config
    segments = [
        Segment([1] * 3, 510, range(9)),
        Segment([1], 70, (10, 12)),
    ]
    pool = bf16(13, 1, 2, 2, 64, head_dim).to(place)
    q = bf16(4, 6, head_dim, seed=1).to(place)
    inputs = gather(segments, config, 13, tile_rows=16, split_tokens=512, group_rows=1 << 20)
    given = ops.Given.of(inputs, torch.from_numpy(inputs.buffer).to(place), splits=inputs.splits)
    found = ops.attend(q, pool, given, layer=0, config=config)
    row = 0
    for segment in segments:
        for number in range(len(segment.tokens)):
            end = segment.start + number + 1
            kv = pool[list(segment.blocks), 0].double().cpu()
            keys, values = kv.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :end]
            scores = q[row].double().cpu().unflatten(0, (2, 3)) @ keys.transpose(1, 2)
            mixed = (scores / head_dim**0.5).softmax(-1) @ values
            assert close(found[row], mixed.flatten(), share=2**-7)
            row += 1


@pytest.mark.parametrize("kin", [{"qkv_bias": True, "attention_out_bias": True}, {"qk_norm": True}])
def test_the_whole_model_against_fp64(new_runner: Callable[..., Any], kin: dict[str, bool]) -> None:
    runner = new_runner(layers=2, heads=4, kv_heads=2, **kin)
    tokens = [int(t) for t in np.random.default_rng(3).integers(0, 75, 20)]
    found = runner.forward([Segment(tokens, 0, (0,), "all")])
    assert not isinstance(found, Interrupted)
    expected = plain(runner, tokens).numpy()
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert (found.argmax(-1) == expected.argmax(-1)).mean() >= 0.9


def plain(runner: Any, tokens: list[int]) -> Any:
    """A Llama in fp64, without a cache."""
    config = runner.config
    weights = {name: values.double().cpu() for name, values in runner.tensors.items()}

    def norm(x: Any, name: str) -> Any:
        return x * (x.square().mean(-1, keepdim=True) + config.rms_epsilon).rsqrt() * weights[name]

    def turn(x: Any) -> Any:
        pairs = torch.arange(config.head_dim // 2).double() * 2 / config.head_dim
        angles = torch.outer(torch.arange(len(tokens)).double(), config.rope_theta**-pairs)[:, None]
        a, b = x.chunk(2, dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)

    x = weights["embedding"][tokens]
    hidden = torch.ones(len(tokens), len(tokens)).triu(1).bool()
    for layer in range(config.layers):
        qkv = norm(x, f"{layer}.attention_norm") @ weights[f"{layer}.qkv"].T
        qkv = qkv + weights.get(f"{layer}.qkv_bias", 0)
        heads = (config.heads, config.kv_heads, config.kv_heads)
        parts = qkv.unflatten(-1, (-1, config.head_dim)).split(heads, dim=1)
        q, k, v = parts
        if config.qk_norm:
            q, k = norm(q, f"{layer}.q_norm"), norm(k, f"{layer}.k_norm")
        q, k = turn(q), turn(k)
        k, v = (t.repeat_interleave(config.heads // config.kv_heads, dim=1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / config.head_dim**0.5
        shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
        x = x + mixed @ weights[f"{layer}.attention_out"].T
        x = x + weights.get(f"{layer}.attention_out_bias", 0)
        gate, up = (norm(x, f"{layer}.mlp_norm") @ weights[f"{layer}.gate_up"].T).chunk(2, dim=-1)
        x = x + (gate * gate.sigmoid() * up) @ weights[f"{layer}.down"].T
    return norm(x, "final_norm") @ weights["embedding"].T
