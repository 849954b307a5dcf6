"""Explanations name what is missing on each GPU, and who is in the way."""

import json
from dataclasses import replace

from sojourn_operator.plan import Phase, State, Taint, plan
from sojourn_operator.plan.explain import explain
from sojourn_operator.plan.mix import mix_of
from sojourn_operator.plan.record import from_data, to_data
from sojourn_operator.plan.state import Nomination

from tests.unit.plan_builders import gpu, node, on, running, session, state

CLUSTER = [
    node("a", 2),
    node("b", (gpu(0, 24, "L4"), gpu(1, 80, "Mystery"), gpu(2, healthy=False))),
    node("c", schedulable=False),
    node("d", taints=(Taint("team", "x", "NoSchedule"),)),
]
HELD = [
    running("s", on("a", 0, slices=60, share=700), share=700),
    running("g", on("a", 1, slices=70, share=0), "gold"),
]


def test_every_node_and_gpu_says_why_not() -> None:
    wish = session("new", "gold", 40, share=500)
    found = explain(state(CLUSTER, [*HELD, wish]), "llm/new")
    assert found.asks == "40 slices on one GPU and a share of 500"
    assert {line.where: line.why for line in found.lines} == {
        "a gpu-0": "20 slices free, needs 40, share of 300 free, needs 500 (llm/s may be paused)",
        "a gpu-1": "10 slices free, needs 40 (llm/g may not be paused)",
        "b gpu-0": "too small even when empty: L4 with 24 slices",
        "b gpu-1": "the speed of Mystery is unknown: set gpuSpeeds of the operator",
        "b gpu-2": "unhealthy",
        "c": "cordoned",
        "d": "taint team=x:NoSchedule is not tolerated",
    }
    assert found.now.startswith("MakingRoom: needs 40 slices")


def test_a_gpu_in_mig_mode_says_so_rather_than_that_it_is_small() -> None:
    found = explain(state([node("m", (gpu(0, 0, mig=True),))], [session("new")]), "llm/new")
    assert [line.why[:11] for line in found.lines] == ["in MIG mode"]


def test_a_place_that_fits_has_no_reason_and_a_running_session_says_where_it_is() -> None:
    found = explain(state([node("a")], [session("new")]), "llm/new")
    assert [line.why for line in found.lines] == [""]
    assert found.now == "Placed: 40 slices on one GPU on a gpu-0"
    settled = explain(state([node("a", 2)], [running("s", on("a", 1))]), "llm/s")
    assert settled.now == "stays Running on a gpu-1"


def test_what_a_session_holds_itself_is_not_in_its_way() -> None:
    """Alone on the share of its GPU, it lacks nothing there; beside it, others count."""
    one = running("s", on("a", 0, slices=60, share=1000), share=1000)
    found = explain(state([node("a", 2)], [one, running("o", on("a", 1, slices=70))]), "llm/s")
    assert [(line.where, line.why, line.here) for line in found.lines] == [
        ("a gpu-0", "", True),
        ("a gpu-1", "10 slices free, needs 60 (llm/o may not be paused)", False),
    ]


def test_a_running_session_on_a_cordoned_node_is_there_all_the_same() -> None:
    found = explain(state([node("a", schedulable=False)], [running("s", on("a"))]), "llm/s")
    assert [(line.where, line.why, line.here) for line in found.lines] == [("a", "cordoned", True)]


def test_a_state_survives_being_written_as_json() -> None:
    nominated = session(
        "n",
        "gold",
        phase=Phase.PAUSED,
        nomination=Nomination(on("a"), ("llm/s",), expires=2000.0),
        kernel_class="k1",
    )
    made = replace(
        state(CLUSTER, [*HELD, nominated]),
        budgets={"pdb": 1},
        mix=mix_of([nominated.request] * 3),
    )
    again = from_data(State, json.loads(json.dumps(to_data(made))))
    assert again == made
    assert plan(again) == plan(made)
