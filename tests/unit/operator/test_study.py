"""The questions to the plan, as the command line asks and answers them."""

import json
from pathlib import Path

import pytest
from sojourn_operator.cli import main
from sojourn_operator.plan.record import to_data

from tests.unit.plan_builders import node, on, running, session, state

NODES = "name,cpu_milli,memory_mib,gpu,model,slices\na,64000,262144,1,A100-80GB,80\n"
SESSIONS = (
    "name,tier,slices,share,arrival,duration\ns,silver,60,500,0,300\nteam/g,gold,70,1000,100,120\n"
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "sessions.csv").write_text(SESSIONS)
    held = running("s", on("a", slices=60))
    world = state([node("a")], [held, session("w", slices=40)])
    (tmp_path / "state.json").write_text(json.dumps(to_data(world)))
    return tmp_path


def test_explain_prints_each_place_and_why_not(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "llm/w", "--state", str(files / "state.json")]) == 0
    told = capsys.readouterr().out
    assert "llm/w needs 40 slices on one GPU" in told
    assert "a gpu-0  20 slices free, needs 40 (llm/s may not be paused)" in told


def test_explain_of_an_unknown_session_fails(files: Path) -> None:
    assert main(["explain", "llm/none", "--state", str(files / "state.json")]) == 1


def test_simulate_prints_the_course_and_the_fate_of_each_session(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--nodes", str(files / "nodes.csv"), "--sessions", str(files / "sessions.csv")]
    assert main(["simulate", *asked]) == 0
    told = capsys.readouterr().out
    assert "SLICES%" in told
    assert main(["simulate", *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sessions"]["default/s"]["pauses"] == 1
    assert found["sessions"]["team/g"]["pauses"] == 0
    assert found["samples"][-1]["done"] == 2


def test_simulate_names_the_file_and_row_at_fault(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "bad.yaml").write_text("- {name: x, model: Mystery}\n")
    asked = ["--nodes", str(files / "bad.yaml"), "--sessions", str(files / "sessions.csv")]
    assert main(["simulate", *asked]) == 1
    assert "bad.yaml: node x needs a name, and slices as Mystery is unknown" in (
        capsys.readouterr().err
    )


def test_compare_of_a_generation_with_itself_is_equal(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(files / "state.json")]) == 0
    assert capsys.readouterr().out == "equal on 1 states\n"
    assert main(["compare", str(files / "state.json"), "--new", "no.such:Thing"]) == 1
