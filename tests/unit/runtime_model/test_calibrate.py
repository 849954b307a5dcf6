"""Calibration measures linears one by one, and writes the cheapest plan that keeps the target."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.model.calibrate import TEXT, main
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.quality import logits_of, quality
from sojourn_runtime.model.quantization import Kind, linears, read_plan
from sojourn_runtime.model.sensitivity import COST, Sensitivity, above_noise, choose
from sojourn_runtime.model.weights import Weights, open_weights

small = st.floats(0, 0.1)
sensitivities = st.lists(
    st.builds(Sensitivity, st.uuids().map(str), st.integers(1, 10**9), small, small),
    max_size=12,
    unique_by=lambda linear: linear.name,
)


@given(sensitivities, small)
def test_the_divergences_of_a_plan_add_up_to_what_is_allowed(
    measured: list[Sensitivity], allowed: float
) -> None:
    kinds = choose(measured, allowed=allowed)
    assert list(kinds) == [linear.name for linear in measured]
    assert sum(linear.divergence(kinds[linear.name]) for linear in measured) <= allowed + 1e-12


@given(sensitivities)
def test_nothing_is_finer_than_it_must_be(measured: list[Sensitivity]) -> None:
    assert set(choose(measured, allowed=10.0).values()) <= {Kind.W8A8}


@given(sensitivities, small, small)
def test_a_stricter_target_never_makes_a_plan_cheaper(
    measured: list[Sensitivity], one: float, other: float
) -> None:
    def cost(allowed: float) -> float:
        kinds = choose(measured, allowed=allowed)
        return sum(COST[kinds[linear.name]] * linear.weights for linear in measured)

    assert cost(min(one, other)) >= cost(max(one, other))


def test_the_dearest_divergence_goes_first() -> None:
    harmless = Sensitivity("a", 100, w8a16=0.001, w8a8=0.002)
    harmful = Sensitivity("b", 100, w8a16=0.001, w8a8=0.05)
    kinds = choose([harmless, harmful], allowed=0.01)
    assert kinds == {"a": Kind.W8A8, "b": Kind.W8A16}


def test_what_any_change_gives_is_not_counted_for_each_linear() -> None:
    found = above_noise([Sensitivity("a", 1, 0.0002, 0.0003), Sensitivity("b", 1, 0.0005, 0.001)])
    assert [each.w8a16 for each in found] == pytest.approx([0, 0.0003])
    assert [each.w8a8 for each in found] == pytest.approx([0.0001, 0.0008])


@pytest.fixture(scope="module")
def target() -> float:
    """Between what the tiny model's W8A8 gives and nothing."""
    return 0.0005


@pytest.fixture(scope="module")
def plan_file(model_folder: Path, target: float, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate")
    arguments = [str(model_folder), "--out", str(folder / "plan.json"), "--threads", "1"]
    arguments += ["--weights-cache", str(folder / "cache"), "--tokens", "96"]
    assert main([*arguments, "--target-kl", str(target)]) == 0
    return folder / "plan.json"


def test_the_plan_says_what_was_measured(plan_file: Path, weights: Weights) -> None:
    written = json.loads(plan_file.read_text())
    assert written["weightsDigest"] == weights.digest
    assert list(written["measured"]["alone"]) == list(linears(weights.config))
    assert all(each["w8a8"] > 0 for each in written["measured"]["alone"].values())


def test_a_model_opened_by_the_plan_has_the_quality_that_the_plan_states(
    plan_file: Path, model_folder: Path, weights: Weights, target: float, tmp_path: Path
) -> None:
    planned = open_weights(str(model_folder), cache_dir=tmp_path, plan=read_plan(str(plan_file)))
    assert len(set(planned.kinds.values())) > 1
    name = CpuRunner(planned, num_blocks=1, threads=1).kernel_class
    stated = json.loads(plan_file.read_text())["measured"]["quality"]
    tokens = list(TEXT.read_bytes()[96:192])  # the tiny tokenizer's merges spoil nothing here
    found = quality(
        logits_of(planned, tokens, threads=1), logits_of(weights, tokens, threads=1), tokens
    )
    assert stated[name]["kl"] <= target
    assert found.kl == pytest.approx(stated[name]["kl"], rel=1)
    assert stated["cpu-fma-bf16-v1"]["kl"] < 1e-9
    assert stated["cpu-vnni-w8a8-v1"]["kl"] > target


def test_a_target_that_no_quantised_plan_keeps_leaves_all_bf16(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below what any change at all gives."""
    arguments = [str(model_folder), "--out", str(tmp_path / "plan.json"), "--threads", "1"]
    arguments += ["--weights-cache", str(tmp_path / "cache"), "--tokens", "96"]
    assert main([*arguments, "--target-kl", "1e-9"]) == 0
    assert "KL 0.0" in capsys.readouterr().err
    written = json.loads((tmp_path / "plan.json").read_text())
    assert set(written["linears"].values()) == {"bf16"}
    assert set(written["linears"]) == set(written["measured"]["alone"])


def test_a_short_text_is_refused(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("Too short.")
    arguments = [str(model_folder), "--out", str(tmp_path / "plan.json")]
    arguments += ["--weights-cache", str(tmp_path / "cache")]
    assert main([*arguments, "--text", str(tmp_path / "text")]) == 1
    assert "InvalidConfiguration: the text has" in capsys.readouterr().err
