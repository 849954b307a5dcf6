"""Who has waited too long has room kept for it, so that nobody waits for ever."""

import random
from dataclasses import replace
from typing import Any

import pytest
from sojourn_operator.plan import (
    Defrag,
    DefragMode,
    Move,
    Phase,
    PlaceSession,
    Planner,
    Session,
    Wait,
    plan,
)
from sojourn_operator.plan.play import World
from sojourn_operator.plan.rank import AGING

from tests.unit.plan_builders import TIERS, gpu, node, on, running, session, state

NOW = 5000.0
OLD, YOUNG = NOW - AGING, NOW - 10.0


def told(actions: tuple[object, ...]) -> dict[str, str]:
    return {one.session: one.message for one in actions if isinstance(one, Wait)}


def started(actions: tuple[object, ...]) -> dict[str, str]:
    return {one.session: one.place.node for one in actions if isinstance(one, PlaceSession)}


def wide(since: float = OLD, **more: Any) -> Session:
    return session("wide", slices=80, created=since, since=since, **more)


def small(tier: str = "silver") -> Session:
    return session("small", tier, 10, created=YOUNG, since=YOUNG)


@pytest.mark.parametrize(("since", "goes"), [(OLD, False), (OLD + 1.0, True)])
def test_what_comes_free_is_kept_once_it_has_waited_too_long(since: float, *, goes: bool) -> None:
    held = running("held", on("a", slices=60))
    actions = plan(state([node("a")], [held, wide(since), small()], now=NOW)).actions
    assert ("llm/small" in started(actions)) is goes
    kept = "after 15 min of waiting, a gpu-0 is kept for it"
    assert (kept in told(actions)["llm/wide"]) is not goes
    assert "20" in told(actions)["llm/wide"]


def test_it_is_kept_where_the_least_is_missing_and_nowhere_else() -> None:
    held = [running("x", on("a", slices=70)), running("y", on("b", slices=50))]
    actions = plan(state([node("a"), node("b")], [*held, wide(), small()], now=NOW)).actions
    assert started(actions) == {"llm/small": "a"}
    assert "b gpu-0 is kept" in told(actions)["llm/wide"]


def test_it_is_kept_on_linked_gpus_that_could_serve_it_when_empty() -> None:
    nodes = [node("a", (gpu(0, 24, "L4"),)), node("b", 2)]
    held = [running("y", on("b", 0, slices=50)), running("z", on("b", 1, slices=50))]
    pair = wide(shards=2, max_shards=2)
    actions = plan(state(nodes, [*held, pair, small()], now=NOW)).actions
    assert started(actions) == {"llm/small": "a"}
    assert "b gpu-0 gpu-1 is kept" in told(actions)["llm/wide"]


def test_only_the_first_in_line_has_room_kept() -> None:
    held = [running("x", on("a", slices=40)), running("y", on("b", slices=40))]
    later = session("later", slices=80, created=OLD + 1, since=OLD)
    actions = plan(state([node("a"), node("b")], [*held, wide(), later, small()], now=NOW)).actions
    assert started(actions) == {"llm/small": "b"}
    assert [key for key, text in told(actions).items() if "is kept for it" in text] == ["llm/wide"]


def test_gold_takes_the_room_all_the_same() -> None:
    held = running("held", on("a", slices=60))
    actions = plan(state([node("a")], [held, wide(), small("gold")], now=NOW)).actions
    assert started(actions) == {"llm/small": "a"}


def test_nothing_is_kept_for_a_session_that_fits_nowhere() -> None:
    huge = session("huge", slices=90, created=OLD, since=OLD)
    actions = plan(state([node("a")], [huge, small()], now=NOW)).actions
    assert started(actions) == {"llm/small": "a"}


def test_moves_for_another_leave_the_kept_room_alone() -> None:
    """One move more would make room for the wide one; the middle one needs a home in its room."""
    held = [
        running("x", on("a", slices=15)),
        running("y", on("a", slices=15)),
        running("z", on("b", slices=30)),
    ]
    middle = session("middle", slices=60, created=OLD + 1.0, since=YOUNG)
    made = state([node("a"), node("b")], [*held, wide(avoid=("b",)), middle], now=NOW)
    actions = plan(replace(made, defrag=Defrag(DefragMode.ON, moves=1))).actions
    assert "a gpu-0 is kept for it" in told(actions)["llm/wide"]
    assert not [one for one in actions if isinstance(one, Move)]


def test_a_stream_of_small_sessions_keeps_no_wide_one_waiting_for_ever() -> None:
    """More small ones come than there is room for, each for some minutes."""
    rng = random.Random(5)  # noqa: S311
    world = World(nodes=[node("a")], tiers=TIERS)
    planner, ends = Planner(), dict[str, float]()
    world.put(session("wide", slices=80))
    for number in range(1200):
        if number:
            one = session(f"s{number}", slices=20, created=world.now, since=world.now)
        else:
            one = session("s0", slices=20, created=-1.0, since=0.0)
        world.put(one)
        ends[one.key] = world.now + rng.uniform(60.0, 600.0)
        for key in [key for key, end in ends.items() if end <= world.now]:
            if key in world.sessions:
                world.end(key)
        world.do(planner.plan(world.state()).actions)
        world.advance(10.0)
        if world.sessions["llm/wide"].phase is Phase.RUNNING:
            break
    assert AGING < world.now < AGING + 700.0
