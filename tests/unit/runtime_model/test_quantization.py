"""Plans say which linear computes in which kind; each has a kernel class and a file of its own."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sojourn_runtime.model import packing
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.quantization import (
    Kind,
    Plan,
    kernel_class,
    linears,
    plan_from_json,
    plan_to_json,
    read_plan,
)
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.weights import Weights, open_weights

from tests.unit.processors import variants


@given(arrays.arrays(np.float32, (5, 16), elements=st.floats(-100, 100, width=32)))
def test_a_weight_is_off_by_half_a_step_at_most(weight: packing.Floats) -> None:
    whole, scales = packing.quantise(weight)
    off = np.abs(whole * scales[:, None] - weight)
    # 2e-36: a row of smaller weights has a scale below float's normal numbers, and counts as zero
    assert (off <= scales[:, None] * 0.501 + 2e-36).all()


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 100])
def test_a_packed_matrix_has_the_shape_that_was_foretold(kind: Kind, outputs: int) -> None:
    packed = packing.PACK[kind](np.ones((outputs, 48), np.float32))
    assert packed.shape == packing.packed_shape(outputs, 48, kind)
    assert packing.kind_of(packed) is kind


def test_pure_plans_have_classes_named_after_their_arithmetic(weights: Weights) -> None:
    found = [kernel_class(Plan(kind).kinds(weights.config)) for kind in Kind]
    assert found == ["cpu-fma-bf16-v1", "cpu-fma-w8a16-v1", "cpu-vnni-w8a8-v1"]


def test_the_class_of_a_mixed_plan_depends_on_every_linear(weights: Weights) -> None:
    names = list(linears(weights.config))
    found = {
        kernel_class(Plan(Kind.W8A8, {name: kind}).kinds(weights.config))
        for name in names
        for kind in (Kind.BF16, Kind.W8A16)
    }
    assert len(found) == 2 * len(names)
    assert all(name.startswith("cpu-mixed-") for name in found)


def test_a_plan_that_spells_out_its_default_is_the_pure_one(weights: Weights) -> None:
    plan = Plan(Kind.BF16, dict.fromkeys(linears(weights.config), Kind.W8A8))
    assert kernel_class(plan.kinds(weights.config)) == "cpu-vnni-w8a8-v1"


@given(
    st.sampled_from(Kind),
    st.dictionaries(st.sampled_from(["0.qkv", "1.down", "head"]), st.sampled_from(Kind)),
)
def test_a_plan_survives_its_file(default: Kind, exceptions: dict[str, Kind]) -> None:
    plan = Plan(default, exceptions, "sha256:abc")
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_each_plan_has_its_file_in_the_cache_and_its_class(
    model_folder: Path, tmp_path: Path
) -> None:
    plans = [*map(Plan, Kind), Plan(Kind.W8A8, {"2.down": Kind.BF16})]
    classes = set()
    for plan in plans:
        opened = open_weights(str(model_folder), cache_dir=tmp_path, plan=plan)
        assert opened.kinds == plan.kinds(opened.config)
        classes.add(CpuRunner(opened, num_blocks=1, threads=1).kernel_class)
    assert len(classes) == len(list((tmp_path / "weights").iterdir())) == len(plans)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int4", "neither bf16, w8a16, w8a8 nor a readable file"),
        ("{}", "no quantization plan"),
        ("[1]", "no quantization plan"),
        ('{"v": 2}', "version 2"),
        ('{"v": 1, "default": "int4", "linears": {}, "weightsDigest": ""}', "int4"),
    ],
)
def test_what_is_no_plan_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    named = text
    if text.startswith(("{", "[")):
        (tmp_path / "plan.json").write_text(text)
        named = str(tmp_path / "plan.json")
    with pytest.raises(InvalidConfiguration, match=words):
        read_plan(named)


def test_a_plan_of_other_weights_is_refused(model_folder: Path, tmp_path: Path) -> None:
    plan = Plan(Kind.W8A8, {}, "sha256:" + "0" * 64)
    with pytest.raises(InvalidConfiguration, match="measured on weights sha256:000"):
        open_weights(str(model_folder), cache_dir=tmp_path, plan=plan)


def test_a_linear_that_the_model_lacks_is_named(model_folder: Path, tmp_path: Path) -> None:
    plan = Plan(Kind.W8A8, {"17.down": Kind.BF16})
    with pytest.raises(InvalidConfiguration, match=r"17\.down"):
        open_weights(str(model_folder), cache_dir=tmp_path, plan=plan)


def test_int8_is_refused_for_experts(write_model: Callable[..., Path], tmp_path: Path) -> None:
    mixtral = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
    folder = write_model(tmp_path / "m", num_experts_per_tok=2, **mixtral)
    with pytest.raises(InvalidConfiguration, match="w8a8: a model with experts computes in bf16"):
        open_weights(str(folder), cache_dir=tmp_path, plan=Plan(Kind.W8A8))


def test_devices_that_know_bf16_only_say_so(model_folder: Path, tmp_path: Path) -> None:
    opened = open_weights(str(model_folder), cache_dir=tmp_path, plan=Plan(Kind.W8A8))
    with pytest.raises(InvalidConfiguration, match="device eager computes in bf16 only"):
        make_runner(opened, device="eager", num_blocks=1)


@pytest.mark.parametrize("device", ["cuda", "cuda-eager", "eager"])
def test_a_device_without_its_library_names_it(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    for name in [one for one in sys.modules if one.startswith("sojourn_runtime.model.")]:
        if name.split(".")[2] in ("cuda", "eager"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    opened = open_weights(str(model_folder), cache_dir=tmp_path)
    words = f"device {device} needs torch: install torch or use --device cpu"
    with pytest.raises(InvalidConfiguration, match=words):
        make_runner(opened, device=device, num_blocks=1)


@pytest.mark.parametrize("variant", variants("avx2", "avxvnni", "avx512", "avx512vnni"))
def test_the_largest_bytes_do_not_saturate(
    write_model: Callable[..., Path], tmp_path: Path, variant: str
) -> None:
    """Embeddings and weights of one magnitude, in runs of equal signs: every product is 127 * 127,
    every sum the largest there is, and both int8 kinds represent them without loss.
    """
    signs = np.where(np.arange(301 * 80).reshape(301, 80) % 80 < 61, 1, -1).astype(np.float32)
    ones, config = np.ones(80, np.float32), {"num_hidden_layers": 1}
    tensors = {
        "model.embed_tokens.weight": signs * np.where(np.arange(301) % 3 == 0, -1, 1)[:, None],
        "model.layers.0.input_layernorm.weight": ones,
        "model.layers.0.self_attn.v_proj.weight": signs[:64] * np.float32(0.125),
        "model.layers.0.self_attn.q_proj.weight": signs[:192] * np.float32(0.125),
        "model.layers.0.self_attn.k_proj.weight": signs[:64] * np.float32(0.125),
    }
    folder, segment = write_model(tmp_path / "m", tensors=tensors, **config), Segment([1], 0, (0,))
    values = []
    for kind in (Kind.W8A16, Kind.W8A8):
        opened = open_weights(str(folder), cache_dir=tmp_path / "c", plan=Plan(kind))
        runner = CpuRunner(opened, num_blocks=1, threads=1, variant=variant)
        assert not isinstance(runner.forward([segment]), Interrupted)
        kv = runner.kv[0].view(np.uint16).reshape(1, 2, 2, -1)
        values.append(packing.from_bf16(kv[0, 1, :, :32].copy()))
    assert np.abs(values[0]).min() == pytest.approx(10, rel=0.01)
    np.testing.assert_allclose(values[1], values[0], rtol=0.01)
