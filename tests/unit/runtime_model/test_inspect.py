"""`inspect` writes the LLMModel manifest that the weights themselves imply."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.inspect import main, manifest
from sojourn_runtime.model.quantization import Kind, Plan, plan_to_json
from sojourn_runtime.model.weights import Weights


def test_the_manifest_says_what_the_config_says(model_folder: Path, weights: Weights) -> None:
    spec = manifest(model_folder)["spec"]
    assert spec == {
        "uri": model_folder.as_uri(),
        "digest": weights.digest,
        "quantization": "bf16",
        "weightBytes": sum(tensor.nbytes for tensor in weights.tensors.values()),
        "kvBytesPerToken": 6 * 2 * 2 * 32 * 2,
        "layers": 6,
        "heads": 6,
        "kvHeads": 2,
        "contextLength": 640,
    }


def test_a_quantised_model_needs_less_and_says_so(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, bytes_ = (manifest(model_folder, quantization=q)["spec"] for q in ("bf16", "w8a8"))
    assert bytes_["quantization"] == "w8a8"
    assert bytes_["weightBytes"] < 0.6 * plain["weightBytes"]
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(json.dumps(plan_to_json(Plan(Kind.W8A8))))
    planned = manifest(model_folder, quantization="plan.json")["spec"]
    assert planned == {**bytes_, "quantization": str(tmp_path / "plan.json")}


def test_a_plan_of_other_weights_makes_no_manifest(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plan").write_text(json.dumps(plan_to_json(Plan(Kind.W8A8, {}, "sha256:0"))))
    with pytest.raises(InvalidConfiguration, match="measured on weights sha256:0"):
        manifest(model_folder, quantization=str(tmp_path / "plan"))


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_both_forms_hold_the_same(
    model_folder: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    arguments = [str(model_folder), "--output", form, "--name", "tiny", "--uri", "file:///m"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    found = yaml.safe_load(text) if form == "yaml" else json.loads(text)
    assert found == manifest(model_folder, name="tiny", uri="file:///m")
    assert found["kind"] == "LLMModel"


def test_a_missing_model_is_an_exit_code_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("ModelNotFound: ")


@pytest.mark.parametrize(
    ("folder", "name"),
    [("SmolLM2_135M-Instruct.Q4_1", "smollm2-135m-instruct.q4-1"), ("--x--", "x"), ("_", "model")],
)
def test_the_name_fits_kubernetes(
    write_model: Callable[..., Path], tmp_path: Path, folder: str, name: str
) -> None:
    assert manifest(write_model(tmp_path / folder))["metadata"]["name"] == name
