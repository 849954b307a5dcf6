"""Every quantisation that a GGUF file may have is expanded to the numbers that ggml means."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.errors import UnsupportedModel
from sojourn_runtime.model.gguf import GgufSource
from sojourn_runtime.model.weights import open_weights

from tests.unit.gguf_files import EXPERTS, Tensors, write_gguf

ATTENTION_OUT = "model.layers.0.self_attn.o_proj.weight"
PLAIN_KINDS = {"F16": 0.002, "BF16": 0.0, "Q8_0": 0.005, "Q4_0": 0.1, "Q4_1": 0.1}
"""And how far a value may lie from what was written."""


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_what_was_written_is_read(tiny_tensors: Tensors, tmp_path: Path, kind: str) -> None:
    file = write_gguf(
        tmp_path / "m.gguf",
        tiny_tensors,
        quantised=ATTENTION_OUT,
        kind=gguf.GGMLQuantizationType[kind],
    )
    found, written = GgufSource(file).tensor(ATTENTION_OUT), tiny_tensors[ATTENTION_OUT]
    np.testing.assert_allclose(found, written, atol=PLAIN_KINDS[kind])


def test_one_of_many_quantised_experts_is_read(
    random_tensors: Callable[..., dict[str, npt.NDArray[np.float32]]], tmp_path: Path
) -> None:
    changes = {
        "architectures": ["OlmoeForCausalLM"],
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
    }
    tensors = random_tensors(**changes)
    file = write_gguf(
        tmp_path / "m.gguf",
        tensors,
        architecture="olmoe",
        numbers=EXPERTS,
        quantised="model.layers.2.mlp.experts.down_proj.weight",
    )
    name = "model.layers.2.mlp.experts.3.down_proj.weight"
    np.testing.assert_allclose(GgufSource(file).tensor(name), tensors[name], atol=0.01)


def six_bits(scales: npt.NDArray[np.uint8], number: int) -> tuple[int, int]:
    """Scale and minimum of a sub-block of Q4_K and Q5_K, as ggml's `get_scale_min_k4` has it."""
    q = [int(byte) for byte in scales]
    if number < 4:
        return q[number] & 63, q[number + 4] & 63
    scale = (q[number + 4] & 15) | (q[number - 4] >> 6 << 4)
    return scale, (q[number + 4] >> 4) | (q[number] >> 6 << 4)


def expand_k(block: npt.NDArray[np.uint8], *, bits: int) -> list[float]:
    """One block of 256 values, number by number; Q4_K, Q5_K or Q6_K."""
    if bits == 6:
        low, high, signed = block[:128], block[128:192], block[192:208].view(np.int8)
        factor = float(block[208:210].view(np.float16)[0])
        made = []
        for i in range(256):
            half, within = divmod(i, 128)
            group, at = divmod(within, 32)
            four = int(low[64 * half + at + 32 * (group % 2)]) >> (4 * (group // 2)) & 15
            two = int(high[32 * half + at]) >> (2 * group) & 3
            made.append(factor * int(signed[i // 16]) * ((four | two << 4) - 32))
        return made
    factor, least = (float(f) for f in block[:4].view(np.float16))
    scales, extra = block[4:16], block[16:48] if bits == 5 else np.zeros(32, np.uint8)
    body = block[48:] if bits == 5 else block[16:]
    made = []
    for i in range(256):
        group, at = divmod(i, 32)
        four = int(body[32 * (group // 2) + at]) >> (4 * (group % 2)) & 15
        value = four | (int(extra[at]) >> group & 1) << 4
        scale, minimum = six_bits(scales, group)
        made.append(factor * scale * value - least * minimum)
    return made


@pytest.mark.parametrize(("bits", "size", "factors"), [(4, 144, 0), (5, 176, 0), (6, 210, 208)])
def test_k_quants_are_those_of_ggml(
    tiny_tensors: Tensors, tmp_path: Path, bits: int, size: int, factors: int
) -> None:
    random = np.random.default_rng(5)
    raw = random.integers(0, 256, (3, 2 * size), np.uint8)
    for block in raw.reshape(6, size):
        end = factors + (2 if bits == 6 else 4)
        block[factors:end] = (
            random.uniform(0.01, 0.1, (end - factors) // 2).astype(np.float16).view(np.uint8)
        )
    file = write_gguf(
        tmp_path / "m.gguf",
        tiny_tensors,
        quantised=ATTENTION_OUT,
        kind=gguf.GGMLQuantizationType[f"Q{bits}_K"],
        raw=raw,
    )
    expected = [expand_k(block, bits=bits) for block in raw.reshape(6, size)]
    found = GgufSource(file).tensor(ATTENTION_OUT)
    assert found.shape == (3, 512)
    np.testing.assert_allclose(found.reshape(6, 256), expected, rtol=1e-5, atol=1e-6)


def test_a_quantisation_that_cannot_be_read_is_named(tiny_tensors: Tensors, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_K
    raw = np.zeros((80, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    given = {"quantised": ATTENTION_OUT, "kind": kind, "raw": raw}
    path = write_gguf(tmp_path / "m.gguf", tiny_tensors, **given)
    with pytest.raises(UnsupportedModel, match="quantised as Q8_K"):
        open_weights(str(path), cache_dir=tmp_path)
