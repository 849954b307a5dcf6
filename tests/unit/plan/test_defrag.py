"""Moves for the sake of packing: only when asked for, within their budget, never for Gold."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_operator.plan import Defrag, DefragMode, Move, Nominate, Plan, Session, State, plan
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.play import World
from sojourn_operator.plan.rehome import Holding, let_in
from sojourn_operator.plan.state import GpuUse, Place, Request

from tests.unit.plan_builders import TIERS, node, on, running, session, state

ON = Defrag(DefragMode.ON, moves=3)


def scattered(*more: Session) -> State:
    """Three GPUs, each with a little on it."""
    held = [running(f"s{i}", on("a", i, slices=20 + i)) for i in range(3)]
    return state([node("a", 3)], [*held, *more])


def moves(found: Plan) -> list[str]:
    return [one.session for one in found.actions if isinstance(one, Move)]


def test_nothing_moves_unless_asked_and_a_dry_run_says_what_would() -> None:
    world = scattered(session("new", slices=70))
    assert moves(plan(world)) == []
    dry = plan(replace(world, defrag=Defrag(DefragMode.DRY_RUN, moves=3)))
    assert moves(dry) == []
    assert dry.notes == ("would move llm/s0 to a gpu-2, as llm/new needs 70 slices on one GPU",)


def test_the_smallest_move_lets_a_waiting_session_in() -> None:
    found = plan(replace(scattered(session("new", slices=70)), defrag=ON))
    (nominate,) = [one for one in found.actions if isinstance(one, Nominate)]
    assert (nominate.session, nominate.nomination.victims) == ("llm/new", ("llm/s0",))
    assert moves(found) == ["llm/s0"]


def test_the_budget_of_moves_is_kept() -> None:
    world = scattered(session("new", slices=70))
    assert moves(plan(replace(world, defrag=Defrag(DefragMode.ON, moves=0)))) == []


def test_gold_and_the_young_are_not_moved() -> None:
    gold = [running(f"g{i}", on("a", i, slices=20), "gold") for i in range(2)]
    young = running("y", on("a", 2, slices=20), since=999.0)
    waiting = session("new", slices=70)
    world = state([node("a", 3)], [*gold, young, waiting])
    assert moves(plan(replace(world, defrag=ON))) == []


def test_nobody_waits_and_gpus_are_emptied_one_by_one_until_no_more_can_be() -> None:
    world = World(nodes=[node("a", 3)], tiers=TIERS, start_seconds=1.0, stop_seconds=1.0)
    for number in range(3):
        world.put(running(f"s{number}", on("a", number, slices=20 + number)))
    told: list[str] = []
    for _ in range(20):
        found = plan(replace(world.state(), defrag=ON))
        told += moves(found)
        world.do(found.actions)
        world.advance(40.0)
    places = {one.place.gpus[0].ordinal for one in world.sessions.values() if one.place}
    assert len(places) == 1
    assert len(told) == 2


def several(name: str, node_name: str, *ordinals: int) -> Session:
    """A session over several whole GPUs of a node."""
    uses = tuple(GpuUse(ordinal, 80, 0) for ordinal in ordinals)
    count = len(ordinals)
    return running(name, Place(node_name, uses), shards=count, max_shards=count)


def test_a_whole_node_is_cleared_of_sessions_over_several_gpus_too() -> None:
    crowd = [
        several("pair", "a", 0, 1),
        *(running(f"s{i}", on("b", i, slices=80)) for i in range(3)),
        running("c", on("c", 0, slices=80)),
    ]
    wide = session("wide", slices=320, shards=4, max_shards=4)
    world = state([node(name, 4) for name in "abc"], [*crowd, wide])
    world = replace(world, defrag=Defrag(DefragMode.ON, moves=1))
    found = plan(world)
    (nominate,) = [one for one in found.actions if isinstance(one, Nominate)]
    assert len(nominate.nomination.victims) == 1
    assert moves(found) == list(nominate.nomination.victims)
    (move,) = [one for one in found.actions if isinstance(one, Move)]
    assert move.nomination.place.node != nominate.nomination.place.node


def test_whoever_holds_the_cpu_moves_where_gpus_are_free_and_cpu_is_short() -> None:
    hog = running("hog", on("a", 0, slices=10), cpu_milli=60_000)
    full = [running(f"s{i}", on("b", i, slices=60)) for i in range(2)]
    world = state(
        [node("a", 2), node("b", 2)], [hog, *full, session("new", slices=80, cpu_milli=8000)]
    )
    found = plan(replace(world, defrag=ON))
    assert moves(found) == ["llm/hog"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_letting_in_leaves_the_ledger_as_it_was_and_fits_when_done(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    placer = Placer(nodes=[node(f"n{i}", 3) for i in range(2)])
    held: list[Holding] = []
    for number in range(rng.randint(3, 14)):
        request = Request(slices=rng.choice([10, 20, 30, 50]), cpu_milli=4000)
        place = placer.find(request, 1)
        if place is not None:
            held.append(Holding(f"s{number}", placer.take_at(place, request), request))
            placer.take(held[-1].what)
    wanted = Request(slices=rng.choice([40, 60, 80]), cpu_milli=4000)
    before = {name: (room.slices[:], room.cpu) for name, room in placer.rooms.items()}
    found = let_in(
        placer,
        wanted,
        shards=1,
        movable=lambda name: [one for one in held if one.what.node == name],
        limit=3,
    )
    assert before == {name: (room.slices, room.cpu) for name, room in placer.rooms.items()}
    if found is None:
        return
    for holding, _ in found.moves:
        placer.give(holding.what)
    placer.take(placer.take_at(found.place, wanted))
    for holding, home in found.moves:
        placer.take(placer.take_at(home, holding.request))
    assert all(min(room.slices) >= 0 and room.cpu >= 0 for room in placer.rooms.values())
