"""A GGUF file gives the same model as a Hugging Face folder, or says what is wrong with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sojourn_runtime.model import rope_scaling
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.errors import (
    UnknownWeightsFormat,
    UnsupportedModel,
    WeightsTruncated,
)
from sojourn_runtime.model.gguf import GgufSource
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import open_weights

from tests.unit.gguf_files import EXPERTS, Tensors, write_gguf


@pytest.fixture(scope="module")
def gguf_file(tiny_tensors: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", tiny_tensors)


COUNTS = {"num_experts": 5, "num_experts_per_tok": 2}
OWN_WIDTH = COUNTS | {"moe_intermediate_size": 48}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama": ("llama", {}, {}),
    "Qwen2": ("qwen2", {}, {}),
    "Llama with biases": ("llama", {"attention_bias": True}, {}),
    "Qwen3": ("qwen3", {"rope_scaling": YARN}, {"rope": gguf.RopeScalingType.YARN}),
    "Mistral": (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope": gguf.RopeScalingType.LINEAR},
    ),
    "Phi3": ("phi3", {"sliding_window": 50}, {"numbers": {"sliding_window": 50}}),
    "Mixtral": (
        "llama",
        {"num_local_experts": 5, "num_experts_per_tok": 2},
        {"numbers": EXPERTS},
    ),
    "Olmoe": ("olmoe", COUNTS, {"numbers": EXPERTS}),
    "Qwen2Moe": (
        "qwen2moe",
        OWN_WIDTH | {"shared_expert_intermediate_size": 96},
        {
            "numbers": EXPERTS
            | {"expert_feed_forward_length": 48, "expert_shared_feed_forward_length": 96}
        },
    ),
    "Qwen3Moe": (
        "qwen3moe",
        OWN_WIDTH | {"norm_topk_prob": True},
        {"numbers": EXPERTS | {"expert_feed_forward_length": 48}},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_weights_give_the_same_logits(
    write_model: Callable[..., Path],
    random_tensors: Callable[..., dict[str, npt.NDArray[np.float32]]],
    stored_tensors: Callable[..., dict[str, npt.NDArray[np.float32]]],
    tmp_path: Path,
    family: str,
) -> None:
    architecture, changes, extra = FAMILIES[family]
    changes = {"architectures": [f"{family.partition(' ')[0]}ForCausalLM"], **changes}
    tensors = (stored_tensors if family == "Phi3" else random_tensors)(**changes)
    file = write_gguf(tmp_path / "m.gguf", tensors, architecture=architecture, **extra)
    folder = write_model(tmp_path / "folder", **changes)
    found, expected = (logits_of(path, cache=tmp_path / "cache") for path in (file, folder))
    assert found.tobytes() == expected.tobytes()


def logits_of(path: Path, *, cache: Path) -> npt.NDArray[np.float32]:
    runner = CpuRunner(open_weights(str(path), cache_dir=cache), num_blocks=2, threads=1)
    made = runner.forward([Segment(range(100), 0, (0, 1), "all")])
    assert not isinstance(made, Interrupted)
    return made


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_llama3_rope_comes_as_a_tensor_of_divisors(
    write_model: Callable[..., Path], tiny_tensors: Tensors, tmp_path: Path
) -> None:
    scaling = rope_scaling.llama3(10000.0, 32, factor=8.0, low=1.0, high=4.0, original=64)
    assert min(scaling.divisors) == 1
    file = write_gguf(tmp_path / "m.gguf", tiny_tensors, divisors=scaling.divisors)
    folder = write_model(tmp_path / "folder", rope_scaling=LLAMA3)
    plain = write_model(tmp_path / "plain")
    found, expected, other = (
        logits_of(path, cache=tmp_path / "cache") for path in (file, folder, plain)
    )
    # in the file the divisors are float32, which may turn the last bit of a rotation
    assert np.abs(found - expected).max() < 0.2
    assert np.abs(found - expected).mean() < 0.015
    assert np.abs(found - other).max() > 0.5


def test_the_tokenizer_comes_from_the_header(gguf_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(open_weights(str(gguf_file), cache_dir=tmp_path))
    assert tokenizer.encode("hiih<7>") == [2, 1, 0, 10]
    assert tokenizer.eos_ids == {2}


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
    ("name", "data", "words"),
    [
        ("prices.csv", b"name,price\nbread,2\n", "no known format of weights"),
        ("model.bin", bytes(4096), "no known format of weights"),
        ("x.gguf", b"x", "no known format of weights"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0{}", "a safetensors file needs its folder"),
    ],
)
def test_what_is_no_gguf_file_is_told_what_would_do(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnknownWeightsFormat, match=words) as told:
        open_weights(path.as_uri(), cache_dir=tmp_path / "cache")
    assert str(told.value).startswith(f"{path}: ")
    assert "a GGUF file, or a Hugging Face folder with config.json" in str(told.value)
    assert "correct LLMModel.spec.uri" in str(told.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'"),
        ({"rope": gguf.RopeScalingType.LONGROPE}, "rope scaling 'longrope'"),
        ({"numbers": {"sliding_window": 50}}, "sliding windows are not supported for llama"),
        ({"numbers": {"rope_dimension_count": 16}}, "rope over 16 of 32 dimensions"),
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
