"""Weights are converted once, mapped afterwards, and never taken for others."""

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.errors import (
    InvalidConfiguration,
    ModelError,
    ModelNotFound,
    UnknownWeightsFormat,
    UnsupportedModel,
    WeightsDigestMismatch,
    WeightsTruncated,
)
from sojourn_runtime.model.packing import unpack
from sojourn_runtime.model.safetensors import SafetensorsSource
from sojourn_runtime.model.weights import Weights, open_weights

WriteModel = Callable[..., Path]


def converted(cache: Path) -> list[Path]:
    return sorted((cache / "weights").iterdir())


def test_the_second_opening_reads_only_the_converted_file(
    write_model: WriteModel, tmp_path: Path
) -> None:
    folder, cache = write_model(tmp_path / "model"), tmp_path / "cache"
    first = open_weights(str(folder), cache_dir=cache)
    (before,) = converted(cache)
    second = open_weights(folder.as_uri(), cache_dir=cache)
    (after,) = converted(cache)
    assert after.stat().st_ino == before.stat().st_ino
    assert second.config == first.config
    assert second.tokenizer == first.tokenizer
    assert second.tensors.keys() == first.tensors.keys()
    assert all(np.array_equal(second.tensors[n], first.tensors[n]) for n in first.tensors)


def test_mapped_tensors_cannot_be_written(weights: Weights) -> None:
    with pytest.raises(ValueError, match="read-only"):
        weights.tensors["final_norm"][0] = 1


def test_tensors_are_those_of_the_file(
    weights: Weights, tiny_tensors: dict[str, npt.NDArray[np.float32]]
) -> None:
    qkv = unpack(weights.tensors["3.qkv"], 320)
    parts = [tiny_tensors[f"model.layers.3.self_attn.{p}_proj.weight"] for p in "qkv"]
    assert np.array_equal(qkv, np.concatenate(parts))


@pytest.mark.parametrize("damage", ["cut", "emptied", "header"])
def test_a_torn_converted_file_is_made_anew(
    write_model: WriteModel, tmp_path: Path, damage: str
) -> None:
    folder, cache = write_model(tmp_path / "model"), tmp_path / "cache"
    open_weights(str(folder), cache_dir=cache)
    (path,) = converted(cache)
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-4096], "emptied": b"", "header": bytes(4096)}[damage])
    open_weights(str(folder), cache_dir=cache)
    assert path.read_bytes() == whole


def test_other_weights_have_another_digest_and_another_file(
    write_model: WriteModel, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    one = open_weights(str(write_model(tmp_path / "one")), cache_dir=cache)
    two = open_weights(str(write_model(tmp_path / "two", rope_theta=5e5)), cache_dir=cache)
    assert one.digest != two.digest
    assert len(converted(cache)) == 2


def test_a_file_changed_in_place_is_noticed(write_model: WriteModel, tmp_path: Path) -> None:
    folder, cache = write_model(tmp_path / "model"), tmp_path / "cache"
    before = open_weights(str(folder), cache_dir=cache).digest
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert open_weights(str(folder), cache_dir=cache).digest != before


def test_a_demanded_digest_is_compared(
    weights: Weights, model_folder: Path, tmp_path: Path
) -> None:
    opened = open_weights(str(model_folder), cache_dir=tmp_path, digest=weights.digest)
    assert opened.digest == weights.digest
    with pytest.raises(WeightsDigestMismatch, match=re.escape(weights.digest)):
        open_weights(str(model_folder), cache_dir=tmp_path, digest="sha256:" + "0" * 64)


def test_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf: not found; mount"):
        open_weights(str(tmp_path / "none.gguf"), cache_dir=tmp_path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no .*safetensors file"):
        open_weights(str(tmp_path), cache_dir=tmp_path / "cache")


def test_a_scheme_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"nfs9://.*not installed"):
        open_weights("nfs9://host/model.gguf", cache_dir=tmp_path)


def test_a_cache_that_cannot_be_written_is_named(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InvalidConfiguration, match="weights cache cannot be written"):
        open_weights(str(model_folder), cache_dir=tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope'"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0]}}, "rope scaling 'longrope'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"partial_rotary_factor": 0.75}, "partial_rotary_factor 0.75"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"architectures": ["MixtralForCausalLM"]}, "lacks 'num_local_experts'"),
        ({"mlp_bias": True}, "mlp_bias"),
        (
            {"architectures": ["MistralForCausalLM"], "attention_bias": True},
            "attention_bias is not supported for mistral",
        ),
        ({"sliding_window": 128}, "sliding_window 128"),
        ({"head_dim": 24}, "head dimension 24"),
        ({"num_key_value_heads": 5}, "key heads"),
    ],
)
def test_what_is_not_supported_is_named(
    write_model: WriteModel, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        open_weights(str(write_model(tmp_path / "m", **change)), cache_dir=tmp_path / "cache")


def test_config_and_weights_of_different_models_are_refused(
    write_model: WriteModel, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(UnsupportedModel, match=r"0\.gate_up"):
        open_weights(str(folder), cache_dir=tmp_path / "cache")


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(share=st.floats(0, 0.999))
def test_a_cut_safetensors_file_is_called_truncated(
    model_folder: Path, tmp_path: Path, share: float
) -> None:
    whole = (model_folder / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_text((model_folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(WeightsTruncated, match=r"model\.safetensors"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"name,price\nbread,2\n",
        b"\x04\0\0\0\0\0\0\0{,,}",
        b'\x0b\0\0\0\0\0\0\0{"a": "b"} ',
        b"\x02\0\0\0\0\0\0\0[]",
    ],
)
def test_a_safetensors_file_that_is_none_is_told_what_would_do(
    model_folder: Path, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "config.json").write_text((model_folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UnknownWeightsFormat, match=r"model\.safetensors: .*safetensors"):
        SafetensorsSource(tmp_path)


def test_a_config_that_is_no_json_is_named(model_folder: Path, tmp_path: Path) -> None:
    for path in model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text("layers: 30")
    with pytest.raises(UnsupportedModel, match=r"config\.json: no JSON"):
        SafetensorsSource(tmp_path)


def test_an_unreadable_type_is_named(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((model_folder / "config.json").read_text())
    entry = {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}
    header = json.dumps({"model.norm.weight": entry}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"12")
    with pytest.raises(UnsupportedModel, match="F8_E4M3"):
        SafetensorsSource(tmp_path).tensor("model.norm.weight")


def test_every_error_carries_a_reason_of_one_word() -> None:
    reasons = {kind.__name__: kind.reason for kind in ModelError.__subclasses__()}
    assert reasons == {name: name for name in reasons}
    assert len(reasons) >= 5


@pytest.mark.parametrize("settings_", [{"threads": 0}, {"threads": 1, "variant": "neon"}])
def test_impossible_settings_are_named(weights: Weights, settings_: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration):
        CpuRunner(weights, num_blocks=1, **settings_)  # type: ignore[arg-type]
