"""What must hold in every state: bounds, tiers, determinism, and that plans come to rest."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sojourn_operator.plan import (
    Action,
    Defrag,
    DefragMode,
    Move,
    Nominate,
    Pause,
    Phase,
    PlaceSession,
    Planner,
    Resume,
    Session,
    State,
    Tenant,
    Wait,
    plan,
)
from sojourn_operator.plan.actions import NO_GPU, NO_ROOM, NODES_OUT
from sojourn_operator.plan.mix import mix_of
from sojourn_operator.plan.play import World
from sojourn_operator.plan.rank import has_aged

from tests.unit.plan_builders import GOLD, TIERS, gpu, node, session

HOLDING = (Phase.STARTING, Phase.RUNNING, Phase.PAUSING)
Step = tuple[World, State, tuple[Action, ...]]
PRIORITY = {tier.name: tier.priority for tier in TIERS}


def cluster(rng: random.Random) -> World:
    """Two to four small nodes of unlike GPUs."""
    nodes = []
    for name in range(rng.randint(2, 4)):
        kinds = [rng.choice([("A100-80GB", 80), ("L4", 24), ("H200", 141)])] * rng.randint(1, 3)
        gpus = tuple(
            gpu(i, slices, model, links=tuple(j for j in range(len(kinds)) if j != i))
            for i, (model, slices) in enumerate(kinds)
        )
        nodes.append(
            replace(node(f"n{name}", gpus), cpu_milli=16_000, memory_bytes=4 << 30, pods=6)
        )
    tenants = [
        Tenant("a", frozenset(PRIORITY), guarantees={"gold": 500, "silver": 300}),
        Tenant("b", frozenset(PRIORITY), weight=2, quota_slices=rng.choice([None, 120])),
    ]
    return World(nodes=nodes, tiers=TIERS, tenants=tenants)


def newcomer(rng: random.Random, world: World, number: int) -> Session:
    return session(
        f"s{number}",
        rng.choice(["gold", "silver", "silver", "bronze"]),
        rng.choice([4, 12, 20, 40, 80]),
        share=rng.choice([0, 0, 100, 500]),
        max_shards=rng.choice([1, 1, 2]),
        cpu_milli=rng.choice([500, 4000]),
        memory_bytes=rng.choice([0, 0, 1 << 30]),
        created=world.now,
        since=world.now,
        save_bytes=rng.randint(0, 10**9),
        tenant=rng.choice(["", "a", "b"]),
    )


def happen(rng: random.Random, world: World, number: int, *, arrivals: bool = True) -> None:
    """One thing that users, nodes or time do."""
    keys = sorted(world.sessions)
    match rng.randint(0, 9):
        case 0 | 1 | 2 if arrivals:
            world.put(newcomer(rng, world, number))
        case 3 if keys:
            world.end(rng.choice(keys))
        case 4 if keys:
            one = world.sessions[rng.choice(keys)]
            world.put(replace(one, suspend=not one.suspend))
        case 5:
            name = rng.choice(sorted(world.nodes))
            place = world.nodes[name]
            draining = rng.random() < 0.3 and not place.draining
            world.nodes[name] = replace(place, draining=draining, schedulable=not draining)
        case 6:
            name = rng.choice(sorted(world.nodes))
            place = world.nodes[name]
            gpus = tuple(replace(one, healthy=rng.random() < 0.8) for one in place.gpus)
            world.nodes[name] = replace(place, ready=rng.random() < 0.8, gpus=gpus)
        case _:
            world.advance(rng.choice([1.0, 5.0, 40.0]))


def check_bounds(state: State) -> None:
    """No GPU and no node holds more than it has."""
    slices: dict[tuple[str, int], int] = defaultdict(int)
    parts: dict[tuple[str, int], float] = defaultdict(float)
    cpu: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    pods: dict[str, int] = defaultdict(int)
    for one in state.sessions.values():
        if one.phase not in HOLDING:
            continue
        assert one.place is not None
        cpu[one.place.node] += one.request.cpu_milli
        memory[one.place.node] += one.request.memory_bytes
        pods[one.place.node] += 1
        for use in one.place.gpus:
            where = (one.place.node, use.ordinal)
            slices[where] += use.slices
            speed = state.nodes[where[0]].gpus[use.ordinal].speed
            assert speed is not None
            parts[where] += use.share / speed.capacity(one.request.decode_fraction)
    for (name, ordinal), count in slices.items():
        assert count <= state.nodes[name].gpus[ordinal].slices
        assert parts[name, ordinal] <= 1.00001
    for name, milli in cpu.items():
        assert milli <= state.nodes[name].cpu_milli
        assert memory[name] <= state.nodes[name].memory_bytes
        assert pods[name] <= state.nodes[name].pods


def check_actions(state: State, actions: tuple[Action, ...]) -> None:
    """Who is paused or moved for whom."""
    for one in actions:
        if isinstance(one, Pause) and one.by:
            victim, claimant = state.sessions[one.session], state.sessions[one.by]
            assert PRIORITY[victim.tier] < PRIORITY[claimant.tier]
            assert victim.tier != GOLD.name
        elif isinstance(one, Pause):
            resting = state.sessions[one.session]
            assert resting.place is not None
            leaves = state.nodes[resting.place.node].draining
            assert resting.suspend or resting.deleting or leaves
        if isinstance(one, Move):
            home = state.sessions[one.session].place
            assert home is not None
            assert state.nodes[home.node].draining or state.sessions[one.session].tier != GOLD.name
        if isinstance(one, PlaceSession | Resume):
            where = state.nodes[one.place.node]
            assert where.ready
            assert not where.draining
            assert all(where.gpus[use.ordinal].healthy for use in one.place.gpus)
            assert state.sessions[one.session].phase in (Phase.WAITING, Phase.PAUSED)


def played(
    seed: int,
    steps: int,
    *,
    half: bool = False,
    defrag: Defrag | None = None,
    most: int | None = None,
) -> Iterator[Step]:
    """A world step by step: the state before each plan, its actions, all or some of them done."""
    rng = random.Random(seed)  # noqa: S311
    world = cluster(rng)
    world.defrag = defrag or Defrag()
    planner = Planner(most=most)
    for number in range(steps):
        happen(rng, world, number)
        state = world.state()
        actions = planner.plan(state).actions
        yield world, state, actions
        world.do(actions[: rng.randint(0, len(actions))] if half else actions)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_and_tiers_hold_at_every_step(seed: int) -> None:
    for world, state, actions in played(seed, 60):
        check_bounds(state)
        check_actions(state, actions)
        check_bounds(world.state())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_a_planner_with_memory_decides_like_a_new_one(seed: int) -> None:
    for _, state, actions in played(seed, 50):
        assert plan(state).actions == actions


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_a_plan_half_done_and_made_again_comes_to_the_same_rest(seed: int) -> None:
    """Whatever part of a plan is carried out, later plans finish the work."""
    steps = list(played(seed, 60, half=True))
    for _, state, actions in steps:
        check_bounds(state)
        check_actions(state, actions)
    rest(steps[-1][0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_plans_of_few_starts_come_to_rest_too(seed: int) -> None:
    """A bounded plan is made again at once where it was cut off."""
    steps = list(played(seed, 60, most=1))
    for _, state, actions in steps:
        check_bounds(state)
        check_actions(state, actions)
        assert sum(isinstance(one, PlaceSession | Resume) for one in actions) <= 1
    rest(steps[-1][0])


def after(seed: int) -> World:
    """A world that has seen some play."""
    *_, (world, _, _) = played(seed, 40)
    return world


def rest(world: World) -> list[str]:
    """Plan and act without events until nothing changes; returns who was preempted on the way."""
    paused: list[str] = []
    for _ in range(200):
        found = plan(world.state())
        actions = found.actions
        paused += [one.session for one in actions if isinstance(one, Pause) and one.by]
        before = dict(world.sessions)
        world.do(actions)
        check_bounds(world.state())
        world.advance(20.0)
        still = found.next_deadline is None and world.sessions == before
        if still and all(isinstance(one, Wait) for one in actions):
            return paused
    pytest.fail("plans do not come to rest")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_without_arrivals_nobody_is_paused_twice(seed: int) -> None:
    world = after(seed)
    for name, one in world.nodes.items():
        gpus = tuple(replace(one_gpu, healthy=True) for one_gpu in one.gpus)
        world.nodes[name] = replace(one, draining=False, schedulable=True, ready=True, gpus=gpus)
    counts = Counter(rest(world))
    assert not [key for key, count in counts.items() if count > 1], counts


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_no_events_without_arrivals_make_two_sessions_preempt_each_other(seed: int) -> None:
    """Whatever else happens: ends, suspensions, drains, sick GPUs, time."""
    rng, world = random.Random(seed), after(seed)  # noqa: S311
    planner, pairs = Planner(), set[tuple[str, str]]()
    for number in range(60):
        happen(rng, world, number, arrivals=False)
        actions = planner.plan(world.state()).actions
        pairs |= {(one.by, one.session) for one in actions if isinstance(one, Pause) and one.by}
        world.do(actions)
    assert not [pair for pair in pairs if pair[::-1] in pairs]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_the_order_in_which_a_state_lists_things_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    for _, state, actions in played(seed, 25):
        known = mix_of(one.request for one in state.sessions.values())
        mixed = replace(state, mix=known)
        again: dict[str, Any] = {
            name: dict(rng.sample(sorted(getattr(state, name).items()), len(getattr(state, name))))
            for name in ("nodes", "sessions", "tiers", "tenants")
        }
        assert plan(replace(state, **again)).actions == actions
        assert plan(replace(mixed, **again)) == plan(mixed)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_at_rest_no_waiting_session_fits(seed: int) -> None:
    world = after(seed)
    rest(world)
    state = world.state()
    assume(not any(has_aged(state, one) for one in state.sessions.values()))  # room is kept for it
    actions = plan(state).actions
    assert not [one for one in actions if isinstance(one, PlaceSession | Resume | Nominate)]
    for one in actions:
        if isinstance(one, Wait) and one.reason in (NO_ROOM, NODES_OUT, NO_GPU):
            assert not fits_somewhere(state, state.sessions[one.session]), one


def fits_somewhere(state: State, asker: Session) -> bool:
    """Whether one GPU of a node in service has all that it asks for: counted anew, GPU by GPU."""
    for spot in state.nodes.values():
        inside = [
            one
            for one in state.sessions.values()
            if one.phase in HOLDING and one.place is not None and one.place.node == spot.name
        ]
        reserved = [
            one.nomination.place
            for one in state.sessions.values()
            if one.nomination is not None and one.nomination.place.node == spot.name
        ]
        short = (
            sum(one.request.cpu_milli for one in inside) + asker.request.cpu_milli > spot.cpu_milli
            or sum(one.request.memory_bytes for one in inside) + asker.request.memory_bytes
            > spot.memory_bytes
            or len(inside) >= spot.pods
        )
        if short or reserved or spot.draining or not spot.schedulable or not spot.ready:
            continue
        for one_gpu in filter(lambda found: found.healthy, spot.gpus):
            uses = [
                (use, one.request.decode_fraction)
                for one in inside
                if one.place is not None
                for use in one.place.gpus
                if use.ordinal == one_gpu.ordinal
            ]
            assert one_gpu.speed is not None
            slices = sum(use.slices for use, _ in uses) + asker.request.slices
            time = sum(use.share / one_gpu.speed.capacity(fraction) for use, fraction in uses)
            time += asker.request.share / one_gpu.speed.capacity(asker.request.decode_fraction)
            if slices <= one_gpu.slices and time <= 0.9999:
                return True
    return False


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_a_guarantee_is_honoured_within_one_round_whoever_borrowed_it(seed: int) -> None:
    """Silver fills all GPUs; then Gold asks for its guarantee, in sessions that fit."""
    rng = random.Random(seed)  # noqa: S311
    count = rng.randint(1, 4)
    nodes = [node("a", tuple(gpu(i) for i in range(count)))]
    owner = Tenant("g", frozenset(PRIORITY), guarantees={"gold": 1000 * count})
    world = World(nodes=nodes, tiers=TIERS, tenants=[owner, Tenant("s", frozenset(PRIORITY))])
    for number in range(8 * count):
        slices, share = rng.choice([(10, 100), (20, 300), (40, 500)])
        lent = session(f"s{number}", "silver", slices, share=share, tenant="s", since=world.now)
        world.put(lent)
    world.do(plan(world.state()).actions)
    world.advance(5.0)
    share = rng.choice([250, 500, 1000])
    for number in range(1000 * count // share):
        world.put(session(f"g{number}", "gold", 80 * share // 1000, share=share, tenant="g"))
    actions = plan(world.state()).actions
    served = {one.session for one in actions if isinstance(one, PlaceSession | Nominate)}
    assert served == {key for key in world.sessions if key.startswith("llm/g")}


def test_thousands_of_steps_of_play_keep_all_promises() -> None:
    for world, state, actions in played(7, 2000):
        check_bounds(state)
        check_actions(state, actions)
        if len(world.sessions) > 40:
            for key in sorted(world.sessions)[:20]:
                world.end(key)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_with_defragmentation_all_promises_hold_and_moves_come_to_an_end(seed: int) -> None:
    steps = list(played(seed, 50, half=True, defrag=Defrag(DefragMode.ON, moves=2)))
    for _, state, actions in steps:
        check_bounds(state)
        check_actions(state, actions)
        moved = [one for one in actions if isinstance(one, Move) and one.reason == "Defragmented"]
        assert len(moved) <= 2
    rest(steps[-1][0])
