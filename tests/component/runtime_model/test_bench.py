"""`sojourn-runtime bench` in a process of its own: its table and its file hold the same figures,
and the operator's reader takes the file.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sojourn_api.names import ANNOTATION_MEASURED
from sojourn_api.parse import parse_model
from sojourn_runtime.model.inspect import manifest


def test_the_patch_and_the_table_hold_what_was_measured(
    model_file: Path, weights_cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "sojourn_runtime", "bench", str(model_file)]
    command += ["--weights-cache", str(weights_cache), "--out", str(out), "--threads", "1"]
    command += ["--tokens", "2", "--rounds", "1", "--prompts", "96", "--workload", "64", "16"]
    command += ["--batches", "1", "3", "--contexts", "16", "48", "100", "180"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    written = json.loads(out.read_text())
    figures = json.loads(written["metadata"]["annotations"][ANNOTATION_MEASURED])
    assert [(c["batch"], c["context"]) for c in figures["decode"]] == [
        (batch, context) for batch in (1, 3) for context in (16, 48, 100, 180)
    ]
    printed = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    for cell in figures["decode"]:
        row = next(r for r in printed if r[:2] == [str(cell["batch"]), str(cell["context"])])
        assert cell["measured"] > 0
        # one prints a decimal, the other four digits
        assert float(row[2]) == pytest.approx(cell["measured"], rel=1e-3, abs=0.06)
        assert float(row[3]) == pytest.approx(cell["fitted"], rel=1e-3, abs=0.06)
    assert figures["kernelClass"] == "cpu-fma-bf16-v1"
    assert set(figures["model"]) == {"1", "3"}
    assert figures["prefill"]["96"] > 0
    model = manifest(model_file)
    model["spec"] |= written["spec"]
    assert 0 < parse_model(model).decode_fraction == written["spec"]["decodeFraction"] < 1000
