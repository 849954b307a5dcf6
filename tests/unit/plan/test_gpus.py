"""What each GPU is worth: the table, its names, and the model of time behind it."""

import pytest
from sojourn_api.gpus import (
    Speed,
    arch_in,
    arch_of,
    capacity,
    find,
    same_model,
    speed_of,
    table,
)


def test_the_reference_is_worth_a_thousand_at_every_decode_fraction() -> None:
    assert {capacity("A100-80GB", decode_fraction=f) for f in (0, 200, 500, 1000)} == {1000}


@pytest.mark.parametrize(
    ("name", "worth"),
    [("NVIDIA H100 80GB HBM3", 2164), ("NVIDIA H200", 2702), ("NVIDIA L4", 213), ("Tesla T4", 179)],
)
def test_names_of_nvml_find_their_model(name: str, worth: int) -> None:
    assert capacity(name, decode_fraction=500) == worth


def test_decode_follows_bandwidth_and_prefill_follows_compute() -> None:
    half_and_double = Speed(tbps=2.039 / 2, tflops=2 * 312)
    assert half_and_double.capacity(1000) == 500
    assert half_and_double.capacity(0) == 2000


def test_an_unknown_model_is_never_worth_a_silent_one() -> None:
    assert find("Mystery 9000") is None
    assert speed_of("Mystery 9000") is None
    assert capacity("Mystery 9000", decode_fraction=500) is None


def test_one_model_has_many_spellings_and_unknown_ones_are_compared_as_text() -> None:
    assert same_model("NVIDIA A100-SXM4-80GB", "a100_80gb")
    assert not same_model("A100-SXM4-80GB", "A100-SXM4-40GB")
    assert same_model("Mystery-9000", "NVIDIA mystery 9000")


def test_every_row_names_its_source_and_no_name_stands_for_two_models() -> None:
    owners: dict[str, set[str]] = {}
    for model in table():
        assert model.source
        assert model.memory_gib > 0
        for name in (model.short, *model.names):
            owners.setdefault(name.upper().replace("-", " "), set()).add(model.short)
            assert find(name) is model
    assert all(len(models) == 1 for models in owners.values())


@pytest.mark.parametrize(
    ("name", "arch"),
    [("NVIDIA H200", "sm90"), ("a100_80gb", "sm80"), ("NVIDIA L4", "sm89"), ("Mystery 9000", "")],
)
def test_kernels_are_compiled_for_the_architecture_of_a_model(name: str, arch: str) -> None:
    assert arch_of(name) == arch


@pytest.mark.parametrize(
    ("kernel_class", "arch"),
    [
        ("cuda-triton3.4-bf16-sm90-v1", "sm90"),
        ("eager-torch-bf16-sm120-v1", "sm120"),
        ("cpu-fma-bf16-v1", ""),
        ("cpu-mixed-1asm90b-v1", ""),
    ],
)
def test_of_a_kernel_class_the_gpu_decides_the_architecture(kernel_class: str, arch: str) -> None:
    assert arch_in(kernel_class) == arch


def test_every_row_has_an_architecture() -> None:
    assert all(arch_in(f"x-{model.arch}-v1") == model.arch for model in table())
