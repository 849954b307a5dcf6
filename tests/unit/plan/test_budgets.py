"""Disruption budgets are weighed before tier and bytes, and are used up by each victim."""

from dataclasses import replace

import pytest
from sojourn_operator.plan import Pause, Session, State, plan

from tests.unit.plan_builders import node, on, running, session, state

FULL = {"a": [("b", 0), ("b", 1)], "b": [("a", 1), ("b", 0)]}


def asked(*sessions: Session, gpus: int, few: int, claims: int = 1, slices: int = 70) -> State:
    """A full node, Gold that asks, and a budget `few` that allows so many disruptions."""
    gold = [session(f"g{number}", "gold", slices) for number in range(claims)]
    return replace(state([node("a", gpus)], [*sessions, *gold]), budgets={"few": few})


def covered(
    name: str, gpu: int, *, slices: int = 60, tier: str = "silver", save: int = 1
) -> Session:
    place = on("a", gpu, slices=slices)
    return running(name, place, tier, budgets=("few",), save_bytes=save)


def free(name: str, gpu: int, *, slices: int = 60, tier: str = "silver") -> Session:
    """In no budget, and dearer than those that are."""
    return running(name, on("a", gpu, slices=slices), tier, save_bytes=10**9)


def paused(world: State) -> list[str]:
    return sorted(one.session for one in plan(world).actions if isinstance(one, Pause))


def test_a_session_whose_budget_is_used_up_goes_after_a_dearer_one() -> None:
    world = asked(covered("cheap", 0), free("dear", 1), gpus=2, few=0)
    assert paused(world) == ["llm/dear"]
    assert paused(replace(world, budgets={"few": 1})) == ["llm/cheap"]


def test_a_lower_tier_whose_budget_is_used_up_goes_after_a_higher_one() -> None:
    world = asked(covered("low", 0, tier="bronze"), free("mid", 1), gpus=2, few=0)
    assert paused(world) == ["llm/mid"]
    assert paused(replace(world, budgets={"few": 1})) == ["llm/low"]


@pytest.mark.parametrize("elsewhere", ["a", "b"])
def test_two_victims_of_a_budget_that_allows_one_are_one_too_many(elsewhere: str) -> None:
    pair = [covered(name, 0, slices=35, tier="bronze") for name in ("one", "two")]
    dear = running("dear", on(elsewhere, 1, slices=60), save_bytes=10**9)
    full = [
        running(f"{name}{gpu}", on(name, gpu, slices=80), "gold") for name, gpu in FULL[elsewhere]
    ]
    gold = session("g", "gold", 70)
    world = state([node("a", 2), node("b", 2)], [*pair, dear, *full, gold])
    assert paused(replace(world, budgets={"few": 1})) == ["llm/dear"]
    assert paused(replace(world, budgets={"few": 2})) == ["llm/one", "llm/two"]


def test_each_victim_of_a_plan_uses_its_budget_up_for_the_claims_behind() -> None:
    crowd = [covered("one", 0), covered("two", 1), free("dear", 2)]
    world = asked(*crowd, gpus=3, few=1, claims=2)
    assert len(paused(world)) == 2
    assert "llm/dear" in paused(world)
    assert paused(replace(world, budgets={"few": 2})) == ["llm/one", "llm/two"]


def test_budgets_are_a_price_and_no_wall() -> None:
    assert paused(asked(covered("only", 0), gpus=1, few=0)) == ["llm/only"]


def test_over_several_gpus_the_node_that_spares_budgets_is_cleared() -> None:
    held = [running(f"x{i}", on("a", i, slices=60), budgets=("few",)) for i in range(2)]
    held += [running(f"y{i}", on("b", i, slices=60), save_bytes=10**9) for i in range(2)]
    wide = session("g", "gold", slices=140, shards=2, max_shards=2)
    world = state([node("a", 2), node("b", 2)], [*held, wide])
    assert paused(replace(world, budgets={"few": 1})) == ["llm/y0", "llm/y1"]
    assert paused(replace(world, budgets={"few": 2})) == ["llm/x0", "llm/x1"]
