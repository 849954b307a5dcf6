"""A GGUF file gives the same model as a Hugging Face folder, or says what is wrong with it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.errors import UnsupportedModel, WeightsTruncated
from sojourn_runtime.model.gguf import GgufSource
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import open_weights

Tensors = Mapping[str, npt.NDArray[np.float32]]
Q8 = gguf.GGMLQuantizationType.Q8_0
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def interleave_halves(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """What llama.cpp's converter does to queries and keys."""
    outputs, inputs = weight.shape
    halves = weight.reshape(heads, 2, outputs // heads // 2, inputs)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(outputs, inputs))


def stored_name(name: str) -> str:
    name, _, kind = name.rpartition(".")
    if name in TOP:
        return f"{TOP[name]}.{kind}"
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER[rest]}.{kind}"


def write_gguf(path: Path, tensors: Tensors, *, architecture: str = "llama", **extra: Any) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(6)
    writer.add_embedding_length(80)
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_key_length(32)
    writer.add_feed_forward_length(112)
    writer.add_context_length(640)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    alphabet = [f"<{number}>" for number in range(298)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(extra.get("pre", "smollm"))
    writer.add_token_list(["h", "i", "hi", *alphabet])
    writer.add_token_types([1, 1, 1, *[3] * 298])
    writer.add_token_merges(["h i"])
    writer.add_eos_token_id(2)
    if "rope" in extra:
        writer.add_rope_scaling_type(extra["rope"])
    for name, values in tensors.items():
        kept = values
        if architecture == "llama" and "q_proj" in name:
            kept = interleave_halves(values, 6)
        elif architecture == "llama" and "k_proj" in name:
            kept = interleave_halves(values, 2)
        if name == extra.get("quantised"):
            writer.add_tensor(stored_name(name), gguf.quants.quantize(kept, Q8), raw_dtype=Q8)
            continue
        writer.add_tensor(stored_name(name), kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def gguf_file(tiny_tensors: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", tiny_tensors)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_same_weights_give_the_same_logits(
    write_model: Callable[..., Path],
    random_tensors: Callable[..., dict[str, npt.NDArray[np.float32]]],
    tmp_path: Path,
    family: str,
) -> None:
    changes = {"architectures": [f"{family.capitalize()}ForCausalLM"]}
    file = write_gguf(tmp_path / "m.gguf", random_tensors(**changes), architecture=family)
    logits = []
    for path in (file, write_model(tmp_path / "folder", **changes)):
        weights = open_weights(str(path), cache_dir=tmp_path / "cache")
        runner = CpuRunner(weights, num_blocks=2, threads=1)
        made = runner.forward([Segment(range(100), 0, (0, 1), "all")])
        assert not isinstance(made, Interrupted)
        logits.append(made)
    assert logits[0].tobytes() == logits[1].tobytes()


def test_the_tokenizer_comes_from_the_header(gguf_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(open_weights(str(gguf_file), cache_dir=tmp_path))
    assert tokenizer.encode("hiih<7>") == [2, 1, 0, 10]
    assert tokenizer.eos_ids == {2}


def test_quantised_tensors_are_expanded(tiny_tensors: Tensors, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    source = GgufSource(write_gguf(tmp_path / "q8.gguf", tiny_tensors, quantised=name))
    np.testing.assert_allclose(source.tensor(name), tiny_tensors[name], atol=0.005)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(share=st.floats(0, 0.999))
def test_a_cut_file_is_called_truncated(gguf_file: Path, tmp_path: Path, share: float) -> None:
    whole = gguf_file.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(WeightsTruncated, match="fetch the file again"):
        GgufSource(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'"),
        ({"rope": gguf.RopeScalingType.YARN}, "rope scaling 'yarn'"),
    ],
)
def test_what_is_not_supported_is_named(
    tiny_tensors: Tensors, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        GgufSource(write_gguf(tmp_path / "m.gguf", tiny_tensors, **change))


def test_an_unknown_pre_tokenizer_is_named(tiny_tensors: Tensors, tmp_path: Path) -> None:
    source = GgufSource(write_gguf(tmp_path / "m.gguf", tiny_tensors, pre="chameleon"))
    with pytest.raises(UnsupportedModel, match="pre-tokenizer 'chameleon'"):
        source.tokenizer()


def test_a_missing_tensor_is_named(tiny_tensors: Tensors, tmp_path: Path) -> None:
    fewer = {name: t for name, t in tiny_tensors.items() if "layers.3.mlp.up" not in name}
    path = write_gguf(tmp_path / "m.gguf", fewer)
    with pytest.raises(UnsupportedModel, match=r"blk\.3\.ffn_up\.weight is missing"):
        open_weights(str(path), cache_dir=tmp_path)
