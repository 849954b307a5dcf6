"""Defragmentation as the operator does it: off, told only, or done within a budget per minute."""

from dataclasses import replace

import pytest
from sojourn_api import render
from sojourn_api.names import PAUSED
from sojourn_api.objects import Resources
from sojourn_operator.act.status import of
from sojourn_operator.config import Config
from sojourn_operator.packing import MINUTE, Packing
from sojourn_operator.plan import Defrag, DefragMode, Move, Nomination
from sojourn_operator.plan.actions import DEFRAGMENTED, PREEMPTED
from sojourn_operator.reasons import EVENT_WOULD_MOVE

from tests.unit.operator.test_poison import NOW, Rig, raw
from tests.unit.plan_builders import on
from tests.unit.pretend_session import session

MOVE = Move("llm/s", Nomination(on("a"), (), 0.0), DEFRAGMENTED, "")


def test_no_minute_has_more_moves_than_allowed_nor_has_the_first() -> None:
    packing = Packing(DefragMode.ON, most=2)
    assert packing.allowed(100.0) == Defrag(DefragMode.ON, moves=0)
    assert packing.due() == 100.0 + MINUTE
    assert packing.allowed(100.0 + MINUTE).moves == 2
    packing.moved(MOVE, now=170.0)
    packing.moved(replace(MOVE, reason=PREEMPTED), now=170.0)
    assert (packing.allowed(170.0).moves, packing.due()) == (1, None)
    packing.moved(MOVE, now=200.0)
    assert (packing.allowed(229.0).moves, packing.due()) == (0, 230.0)
    assert packing.allowed(230.0).moves == 1


def test_a_dry_run_has_its_budget_at_once_and_says_each_thing_once() -> None:
    packing = Packing(DefragMode.DRY_RUN, most=2)
    assert packing.allowed(100.0) == Defrag(DefragMode.DRY_RUN, moves=2)
    assert packing.news(["b", "a"]) == ["a", "b"]
    assert packing.news(["a", "c"]) == ["c"]
    assert packing.news(["b"]) == ["b"]


def put(rig: Rig, name: str, slices: int) -> None:
    found = raw(render.session_to_raw(session(resources=Resources(slices=slices, share=10))))
    found["metadata"] |= {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    rig.server.kept["LLMSession", name] = found
    rig.cache.sessions.offer(found)


def scattered(mode: str) -> Rig:
    """Two nodes of one GPU with 30 of 80 slices taken, and a session that asks for 60."""
    settings = Config(device="cpu", defragmentation=mode, moves_per_minute=1, pending_seconds=900)
    rig = Rig(settings)
    put(rig, "one", 30)
    rig.loop.run_once(NOW)
    rig.put_node("node-a", version=6, cordoned=True)
    rig.put_node("node-b")
    put(rig, "two", 30)
    rig.loop.run_once(NOW + 1)
    assert rig.server.pods == ["one-1", "two-1"]
    rig.put_node("node-a", version=7)
    put(rig, "wide", 60)
    return rig


def moved(rig: Rig) -> list[str]:
    """Sessions that were told to move."""
    found = rig.cache.sessions.values().values()
    return [
        one.session.meta.name
        for one in found
        if of(one.session.status, PAUSED).reason == DEFRAGMENTED
    ]


def test_a_session_is_moved_for_one_that_waits_once_the_budget_allows_it() -> None:
    rig = scattered("On")
    rig.loop.run_once(NOW + 59)
    assert rig.ready("wide")[1] == "WaitingForRoom"
    assert moved(rig) == []
    rig.loop.run_once(NOW + 60)
    (name,) = moved(rig)
    assert rig.server.deleted == [f"Pod {name}-1"]
    seen = rig.cache.sessions.get("team/wide")
    assert seen is not None
    assert seen.session.status.nomination is not None
    assert seen.session.status.nomination.victims == (f"team/{name}",)
    assert rig.loop._packing.due() == NOW + 60 + MINUTE, "it was counted"


@pytest.mark.parametrize("mode", ["Off", "DryRun"])
def test_without_defragmentation_nobody_is_moved_and_a_dry_run_tells_who_would_be(
    mode: str,
) -> None:
    rig = scattered(mode)
    for later in (59, 60, 200):
        rig.loop.run_once(NOW + later)
    assert moved(rig) == []
    told = [text for who, reason, text in rig.server.events if reason == EVENT_WOULD_MOVE]
    if mode == "Off":
        assert told == []
        return
    (text,) = told
    assert text.startswith("would move team/")
    assert text.endswith("gpu-0, as team/wide needs 60 slices on one GPU and a share of 10")
