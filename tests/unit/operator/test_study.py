"""The questions to the plan, as the command line asks and answers them."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sojourn_operator import plan
from sojourn_operator.cli import main
from sojourn_operator.commands.study import there
from sojourn_operator.commands.studyfiles import TIERS, jobs_from
from sojourn_operator.plan.record import to_data
from sojourn_operator.plan.state import Nomination

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


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("w", "no session w; name it as NAMESPACE/NAME (is it llm/w?)"),
        ("other/w", "no session other/w; name it as NAMESPACE/NAME (is it llm/w?)"),
        ("llm/none", "no session llm/none; name it as NAMESPACE/NAME (see kubectl get llms -A)"),
    ],
)
def test_explain_of_an_unknown_session_says_how_to_name_one(
    files: Path, capsys: pytest.CaptureFixture[str], asked: str, hint: str
) -> None:
    assert main(["explain", asked, "--state", str(files / "state.json")]) == 1
    assert capsys.readouterr().err == f"sojourn-operator explain: {hint}\n"


def test_explain_of_a_running_session_says_where_it_is_and_where_it_would_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = state([node("a", 2)], [running("s", on("a", slices=60, share=1000), share=1000)])
    (tmp_path / "state.json").write_text(json.dumps(to_data(world)))
    assert main(["explain", "llm/s", "--state", str(tmp_path / "state.json")]) == 0
    told = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[2:]]
    assert told == [
        ["PLACE", "VERDICT"],
        ["a", "gpu-0", "it is here"],
        ["a", "gpu-1", "it would fit"],
    ]


def test_a_simulation_of_the_live_cluster_begins_where_its_sessions_stand() -> None:
    kept = Nomination(on("a"), (), expires=1030.0)
    one = running("s", on("a"), since=990.0, created=900.0, nomination=kept, not_before=1005.0)
    (job,) = there(state([node("a")], [one], now=1000.0))
    assert job.there
    assert (job.session.since, job.session.created, job.session.not_before) == (-10, -100, 5)
    assert job.session.nomination == replace(kept, expires=30.0)
    assert (job.session.phase, job.session.place) == (one.phase, one.place)


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
    told = capsys.readouterr().err
    assert "bad.yaml, item 1: node x: GPU model 'Mystery' is unknown (known are A100" in told


def test_compare_of_a_generation_with_itself_is_equal(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(files / "state.json")]) == 0
    assert capsys.readouterr().out == "equal on 1 states\n"
    assert main(["compare", str(files / "state.json"), "--new", "no.such:Thing"]) == 1


HEAD = "name,tier,slices,share,arrival\n"


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("", "nodes.csv: empty"),
        ("a,64000\n", "nodes.csv, line 1: no column name"),
        ("name,model,cpu_milli\na,H100,x\n", "line 2: cpu_milli 'x': write a whole number"),
        ("name,model\na,H100\na,H100\n", "line 3: name a is there twice"),
        ("name,model\na,H100,1\n", "line 2: more than the 2 columns"),
        (
            "name,model\na,H100-80GB\n",
            "line 2: node a: GPU model 'H100-80GB' is unknown (near it: ",
        ),
        ("name,model,slices\na,H100,0\n", "line 2: node a: slices 0"),
        ("name,model,slices\na,H100,nan\n", "line 2: slices 'nan'"),
    ],
)
def test_a_fault_of_nodes_names_file_row_and_field(
    files: Path, capsys: pytest.CaptureFixture[str], nodes: str, told: str
) -> None:
    (files / "nodes.csv").write_text(nodes)
    assert told in refused(files, capsys)


@pytest.mark.parametrize(
    ("sessions", "told"),
    [
        ("", "sessions.csv: empty"),
        (HEAD, "sessions.csv: empty"),
        ("name,tier\ns,gold\n", "line 1: no column slices"),
        (HEAD + "s,gold,forty,,\n", "line 2: slices 'forty': write a whole number from 1"),
        (HEAD + "s,gold,-4,,\n", "line 2: slices '-4'"),
        (HEAD + "s,gold,4.5,,\n", "line 2: slices '4.5'"),
        (HEAD + "s,gold,4,-1,\n", "line 2: share '-1'"),
        (HEAD + "s,gold,4,,-1\n", "line 2: arrival '-1': write seconds, 0 or more"),
        (HEAD + "s,golden,4,,\n", "line 2: session s: tier 'golden' is unknown; use gold"),
        (HEAD + "s,gold,4,,\ndefault/s,gold,4,,\n", "line 3: name default/s is there twice"),
        (HEAD + "s,gold,,,\n", "line 2: session s has no slices"),
    ],
)
def test_a_fault_of_sessions_names_file_row_and_field(
    files: Path, capsys: pytest.CaptureFixture[str], sessions: str, told: str
) -> None:
    (files / "sessions.csv").write_text(sessions)
    assert told in refused(files, capsys)


@pytest.mark.parametrize("binary", [b"\x7fELF\x02\x01\x00\x00\xff\xfe", b"\x00\x01\x02\n\x00"])
@pytest.mark.parametrize("name", ["sessions.csv", "nodes.csv"])
def test_a_binary_file_is_refused(
    files: Path, capsys: pytest.CaptureFixture[str], binary: bytes, name: str
) -> None:
    (files / name).write_bytes(binary)
    assert f"{name}: not a text file" in refused(files, capsys)


@pytest.mark.parametrize("flag", ["--until", "--every", "--start-seconds"])
def test_a_time_below_zero_is_refused(
    files: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert f"{flag} -1: give seconds" in refused(files, capsys, flag, "-1")


def refused(files: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The one line on the error stream."""
    asked = ["--nodes", str(files / "nodes.csv"), "--sessions", str(files / "sessions.csv")]
    assert main(["simulate", *asked, *more]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    return said.err


def test_a_session_without_a_share_asks_for_its_tiers_guarantee(files: Path) -> None:
    (files / "sessions.csv").write_text("name,tier,slices,share\na,silver,40,\nb,gold,40,7\n")
    silver, gold = jobs_from(files / "sessions.csv")
    guarantee = next(tier.guaranteed_share for tier in TIERS if tier.name == "silver")
    assert silver.session.request.share == guarantee > 0
    assert gold.session.request.share == 7


@pytest.mark.parametrize("state", ["[]", "{}", "3", '{"kind": "State", "sessions": []}', "\x00"])
def test_a_file_that_holds_no_state_is_refused(
    files: Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    (files / "state.json").write_text(state)
    assert main(["explain", "llm/w", "--state", str(files / "state.json")]) == 1
    told = capsys.readouterr().err
    assert "state.json: not a recorded state" in told
    assert told.count("\n") == 1


class Backwards:
    """Says the same from the end to the beginning."""

    def plan(self, state: plan.State) -> plan.Plan:
        found = plan.Planner().plan(state)
        return replace(found, actions=found.actions[::-1])


class Silent:
    """Says nothing."""

    def plan(self, _: plan.State) -> plan.Plan:
        return plan.Plan((), None)


DIFFERENCE = (
    "state 0: the old one says PlaceSession llm/x (Placed: 10 slices on one GPU on a gpu-0), "
    "the new one nothing"
)


@pytest.mark.parametrize(
    ("new", "status", "told"),
    [
        (Backwards, 0, ["equal up to order on 2 states"]),
        (
            Silent,
            1,
            [
                "different on 1 states",
                DIFFERENCE,
            ],
        ),
    ],
)
def test_compare_ends_with_1_at_the_first_difference_and_says_it(
    files: Path, capsys: pytest.CaptureFixture[str], new: type, status: int, told: list[str]
) -> None:
    world = state([node("a")], [session("x", slices=10), session("y", slices=10, created=1.0)])
    (files / "two.json").write_text(json.dumps(to_data(world)))
    states = [str(files / "two.json"), str(files / "state.json")]
    assert main(["compare", *states, "--new", f"{__name__}:{new.__name__}"]) == status
    assert capsys.readouterr().out.splitlines() == told
    main(["compare", *states, "--new", f"{__name__}:{new.__name__}", "--json"])
    assert json.loads(capsys.readouterr().out)["likeness"] == told[0].partition(" on ")[0]


def test_files_of_yaml_play_like_those_of_csv(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "nodes.yaml").write_text("- {name: a, model: A100-80GB, cpu_milli: 64000}\n")
    (files / "sessions.yml").write_text(
        "- {name: s, slices: 60, share: 500, duration: 300}\n"
        "- {name: team/g, tier: gold, slices: 70, share: 1000, arrival: 100, duration: 120}\n"
    )
    told = []
    for nodes, sessions in (("nodes.csv", "sessions.csv"), ("nodes.yaml", "sessions.yml")):
        asked = ["--nodes", str(files / nodes), "--sessions", str(files / sessions), "--json"]
        assert main(["simulate", *asked]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    fills = [one["fill"] for one in told[0]["samples"]]
    assert {one["slices"] for one in fills} >= {0.0, 75.0}
    assert all(set(one) == {"slices", "share", "scatter", "stranded"} for one in fills)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_says_how_many_sessions_are_done(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["--nodes", str(files / "nodes.csv"), "--sessions", str(files / "sessions.csv")]
    assert main(["simulate", *asked]) == 0
    assert capsys.readouterr().err == "", "no bar where nobody looks"
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["simulate", *asked]) == 0
    steps = screen.getvalue().split("\r")
    assert steps[1] == f"[{' ' * 40}] 0/2 sessions"
    assert f"[{'#' * 20}{' ' * 20}] 1/2 sessions" in steps
    assert steps[-1] == f"[{'#' * 40}] 2/2 sessions\n"
