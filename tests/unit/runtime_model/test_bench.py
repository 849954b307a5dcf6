"""`bench` measures what fits into memory, and refuses what it cannot fit a model to."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sojourn_runtime.keeper import Policy
from sojourn_runtime.model.bench import main
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.pace import Sizes, measure
from sojourn_runtime.model.protocol import Segment

NewRunner = Callable[..., CpuRunner]


class Noted:
    """A runner, and the rows of its passes."""

    def __init__(self, runner: CpuRunner) -> None:
        self._runner = runner
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, segments: Sequence[Segment]) -> Any:
        self.rows.append(sum(len(segment.tokens) for segment in segments))
        return self._runner.forward(segments)


TINY = ["--tokens", "2", "--rounds", "1", "--threads", "1", "--prompts", "96"]


def test_prompts_are_computed_in_the_chunks_of_a_session(new_runner: NewRunner) -> None:
    noted = Noted(new_runner(num_blocks=4))
    sizes = Sizes(batches=[1], contexts=[200], prompts=[200], tokens=1, rounds=1)
    measure(noted, sizes)  # type: ignore[arg-type]  # looks like one
    chunk = Policy().chunk
    assert noted.rows[:4] == [chunk, chunk, chunk, 200 - 3 * chunk]


def test_what_does_not_fit_into_memory_is_left_out_and_said(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(model_folder), "--weights-cache", str(tmp_path), "--kv-mib", "1", *TINY]
    sizes = ["--batches", "1", "4", "--contexts", "16", "60", "120", "600"]
    assert main([*arguments, *sizes]) == 0
    printed = capsys.readouterr().out
    assert "| 1 | 600 |" in printed
    assert "| 4 | 600 |" not in printed
    assert "left out: more than --kv-mib 1" in printed


def test_too_few_lengths_are_refused(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(model_folder), "--weights-cache", str(tmp_path), *TINY]
    assert main([*arguments, "--contexts", "16", "32", "64", "639"]) == 1
    assert "InvalidConfiguration: --contexts: the rate model needs 4" in capsys.readouterr().err
