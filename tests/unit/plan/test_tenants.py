"""Guarantees are lent and come back, quotas hold, and the rest is shared by weight."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from sojourn_operator.plan import (
    Move,
    Pause,
    PlaceSession,
    Reject,
    Session,
    State,
    Tenant,
    Wait,
    plan,
)
from sojourn_operator.plan.rank import AGING
from sojourn_operator.plan.tenants import broken_promises

from tests.unit.plan_builders import gpu, node, on, running, session, state

TIERS = frozenset({"gold", "silver", "bronze"})


def tenant(name: str, **more: object) -> Tenant:
    return replace(Tenant(name, TIERS), **more)  # type: ignore[arg-type]


def owned(*sessions: Session, tenants: Iterable[Tenant], gpus: int = 1) -> State:
    made = state([node("a", gpus)], sessions)
    return replace(made, tenants={one.name: one for one in tenants})


def test_a_tier_that_the_tenant_may_not_use_is_rejected_by_name() -> None:
    poor = Tenant("poor", frozenset({"bronze"}))
    (reject,) = plan(owned(session("s", tenant="poor"), tenants=[poor])).actions
    assert isinstance(reject, Reject)
    assert reject.message == "tenant poor may not use tier silver; it may use: bronze"


def test_a_quota_is_kept_within_one_plan_and_told_in_numbers() -> None:
    acme = tenant("acme", quota_slices=50)
    two = [session(name, slices=30, tenant="acme") for name in ("one", "two")]
    placed, waiting = plan(owned(*two, tenants=[acme])).actions
    assert isinstance(placed, PlaceSession)
    assert isinstance(waiting, Wait)
    assert waiting.message == "tenant acme uses 30 of its quota of 50 slices; needs 30"


@pytest.mark.parametrize(
    ("quota", "told"),
    [
        ({"quota_share": 150}, "uses 100 of its quota of 150 share; needs 100"),
        ({"quota_sessions": 1}, "uses 1 of its quota of 1 sessions; needs 1"),
    ],
)
def test_a_quota_of_share_or_sessions_is_kept_too(quota: dict[str, int], told: str) -> None:
    acme = tenant("acme", **quota)
    two = [session(name, slices=10, share=100, tenant="acme") for name in ("one", "two")]
    placed, waiting = plan(owned(*two, tenants=[acme])).actions
    assert isinstance(placed, PlaceSession)
    assert isinstance(waiting, Wait)
    assert (waiting.reason, waiting.message) == ("QuotaExceeded", f"tenant acme {told}")


def test_claimants_of_a_tier_take_turns_by_use_per_weight() -> None:
    asked: dict[str, Any] = {"share": 100, "slices": 20, "since": 990.0}
    crowd = [session(f"a{i}", tenant="a", created=i, **asked) for i in range(4)]
    late = [session(f"b{i}", tenant="b", created=9.0, **asked) for i in range(4)]
    heavy = [tenant("a"), tenant("b", weight=3)]
    actions = plan(owned(*crowd, *late, tenants=heavy)).actions
    placed = [one.session for one in actions if isinstance(one, PlaceSession)]
    assert placed == ["llm/a0", "llm/b0", "llm/b1", "llm/b2"]


def test_what_is_borrowed_is_reclaimed_before_what_is_guaranteed() -> None:
    saver = tenant("saver", guarantees={"silver": 500})
    borrower = tenant("borrower", guarantees={"silver": 100})
    kept = running("kept", on("a", 0, slices=80, share=500), share=500, tenant="saver")
    lent = running(
        "lent", on("a", 1, slices=80, share=500), share=500, tenant="borrower", save_bytes=10**9
    )
    gold = session("gold", "gold", share=500)
    actions = plan(owned(kept, lent, gold, tenants=[saver, borrower], gpus=2)).actions
    assert [one.session for one in actions if isinstance(one, Pause)] == ["llm/lent"]


def test_a_tenant_above_its_guarantee_takes_nothing_that_is_guaranteed_to_another() -> None:
    saver = tenant("saver", guarantees={"silver": 500})
    kept = running("kept", on("a", slices=80, share=500), share=500, tenant="saver")
    greedy = session("gold", "gold", share=500, tenant="greedy")
    none = tenant("greedy", guarantees={"gold": 0})
    assert [type(one) for one in plan(owned(kept, greedy, tenants=[saver, none])).actions] == [Wait]
    enough = tenant("greedy", guarantees={"gold": 500})
    actions = plan(owned(kept, greedy, tenants=[saver, enough])).actions
    assert [one.reason for one in actions if isinstance(one, Pause)] == ["Reclaimed"]


def test_a_guarantee_that_is_lent_out_comes_back_within_one_round() -> None:
    guaranteed = tenant("g", guarantees={"gold": 2000})
    lent = [
        running(f"s{i}", on("a", i, slices=40, share=900), share=900, since=999.0) for i in range(2)
    ]
    claims = [session(f"g{i}", "gold", share=1000, tenant="g") for i in range(2)]
    actions = plan(owned(*lent, *claims, tenants=[guaranteed], gpus=2)).actions
    assert sorted(one.session for one in actions if isinstance(one, Pause)) == ["llm/s0", "llm/s1"]


def test_a_victim_with_another_home_moves_and_does_not_wait() -> None:
    small = node("small", (gpu(0, 24, "L4"),))
    wide = state(
        [node("a"), small],
        [running("s", on("a", slices=20)), session("g", "gold", slices=70)],
    )
    (move,) = [one for one in plan(wide).actions if isinstance(one, Move)]
    assert (move.session, move.nomination.place.node) == ("llm/s", "small")
    assert move.message.startswith("moved to small gpu-0 for llm/g, which needs 70 slices")


def test_a_victim_that_can_move_is_chosen_before_a_cheaper_one_that_cannot() -> None:
    small = node("small", (gpu(0, 24, "L4"),))
    stays = running("stays", on("a", 0, slices=75), save_bytes=1)
    moves = running("moves", on("a", 1, slices=20), save_bytes=10**6)
    world = state([node("a", 2), small], [stays, moves, session("g", "gold", slices=70)])
    actions = plan(world).actions
    assert not [one for one in actions if isinstance(one, Pause)]
    assert [one.session for one in actions if isinstance(one, Move)] == ["llm/moves"]


def test_whoever_waited_too_long_goes_before_the_young_of_any_pausable_tier() -> None:
    old = session("old", "bronze", 60, since=0.0)
    young = session("young", "silver", 60, since=AGING)
    world = replace(state([node("a")], [old, young]), now=AGING + 1)
    first, *_ = plan(world).actions
    assert (type(first), first.session) == (PlaceSession, "llm/old")


def test_guarantees_beyond_the_cluster_are_told_in_numbers() -> None:
    first = tenant("first", guarantees={"gold": 800})
    second = tenant("second", guarantees={"gold": 800})
    found = broken_promises(owned(tenants=[first, second]))
    assert list(found) == ["second"]
    assert "1600 are promised up to here, the GPUs in service have 1000" in found["second"]
