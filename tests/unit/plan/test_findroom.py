"""The quick search for room finds what simulating every node finds."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sojourn_operator.plan import Session, Tenant
from sojourn_operator.plan.board import Board
from sojourn_operator.plan.findroom import CLOSE_CALLS, RoomFinder
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.victims import find_claims

from tests.unit.plan_builders import node, on, running, session, state

TENANTS = {
    "a": Tenant("a", frozenset({"gold", "silver", "bronze"}), guarantees={"silver": 900}),
    "b": Tenant("b", frozenset({"gold", "silver", "bronze"})),
}


def crowded(rng: random.Random, tenants: Sequence[str], *, budgets: bool = False) -> list[Session]:
    """Nearly every GPU of six nodes of four is full."""
    held = []
    for number in range(6 * 4):
        left = 80
        while left >= 10:
            slices = rng.choice([size for size in (10, 20, 40, 60) if size <= left])
            left -= slices
            held.append(
                running(
                    f"r{number}-{left}",
                    on(f"n{number // 4}", number % 4, slices=slices),
                    rng.choice(["gold", "silver", "silver", "bronze"]),
                    save_bytes=rng.randint(0, 5) * 10**6,
                    since=float(rng.randint(0, 900)),
                    share=rng.choice([0, 0, 100]),
                    tenant=rng.choice(tenants),
                    budgets=rng.choice([(), (), ("few",)]) if budgets else (),
                )
            )
    return held


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([("",), ("", "a", "b")]))
def test_the_quick_search_and_the_simulation_of_all_nodes_agree(
    seed: int, tenants: tuple[str, ...]
) -> None:
    rng = random.Random(seed)  # noqa: S311
    claimant = session("g", rng.choice(["gold", "silver"]), rng.choice([40, 60, 80]))
    claimant = replace(claimant, tenant=rng.choice(tenants))
    world = state([node(f"n{i}", 4) for i in range(6)], [*crowded(rng, tenants), claimant])
    world = replace(world, tenants=TENANTS if len(tenants) > 1 else {})
    board = Board(Placer())
    board.update(world)
    assert board.placer.find(claimant.request, 1) is None
    turn = Turn(state=world, board=board)
    finder = RoomFinder(turn, claimant)
    quick = finder.find()
    need_on = board.placer.index.needs(claimant.request, 1)
    whole = find_claims(
        board.placer,
        [(room, need) for room in board.placer.rooms.values() if (need := need_on(room))],
        leaving=turn.leaving_from,
        candidates=finder.on_node,
        count=CLOSE_CALLS,
    )
    assert [(one.place, one.victims) for one in quick[:1]] == [
        (one.place, one.victims) for one in whole[:1]
    ]


def test_a_node_short_of_cpu_is_cleared_by_whoever_holds_it() -> None:
    busy = running("b", on("a", 0, slices=1), "bronze", cpu_milli=64_000)
    world = state([node("a", 2)], [busy, session("g", "gold", cpu_milli=1000)])
    board = Board(Placer())
    board.update(world)
    (claim,) = RoomFinder(Turn(state=world, board=board), world.sessions["llm/g"]).find()[:1]
    assert [victim.key for victim in claim.victims] == ["llm/b"]


def test_the_offers_are_counted_for_the_message() -> None:
    held = [running(f"s{i}", on("a", i, slices=60), save_bytes=i) for i in range(4)]
    world = state([node("a", 4)], [*held, session("g", "gold")])
    board = Board(Placer())
    board.update(world)
    claims = RoomFinder(Turn(state=world, board=board), world.sessions["llm/g"]).find()
    assert claims[0].options == 4


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_with_budgets_too_while_some_way_spares_them(seed: int) -> None:
    """Where no way does, tiers are added from the lowest up and budgets come second."""
    rng = random.Random(seed)  # noqa: S311
    claimant = session("g", "gold", rng.choice([20, 40]))
    held = crowded(rng, ("",), budgets=True)
    world = state([node(f"n{i}", 4) for i in range(6)], [*held, claimant])
    world = replace(world, budgets={"few": rng.choice([0, 1, 2])})
    board = Board(Placer())
    board.update(world)
    finder = RoomFinder(Turn(state=world, board=board), claimant)
    (quick, *_) = finder.find()
    every = RoomFinder(Turn(state=world, board=board), claimant)
    every._strict = False
    need_on = board.placer.index.needs(claimant.request, 1)
    (whole, *_) = find_claims(
        board.placer,
        [(room, need) for room in board.placer.rooms.values() if (need := need_on(room))],
        leaving=lambda _: [],
        candidates=every.on_node,
        count=1,
    )
    covered = sum("few" in victim.budgets for victim in whole.victims)
    assume(covered <= world.budgets["few"])
    assert (quick.place, quick.victims) == (whole.place, whole.victims)
