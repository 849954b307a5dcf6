"""What a tenant's status says of its share."""

import dataclasses

from sojourn_operator import plan
from sojourn_operator.figures import Figures, figures


def placed(key: str, tenant: str, tier: str, share: int) -> plan.Session:
    return plan.Session(
        key=key,
        tier=tier,
        request=plan.Request(slices=1, share=share),
        phase=plan.Phase.RUNNING,
        created=0.0,
        since=0.0,
        tenant=tenant,
        place=plan.Place("node-a", (plan.GpuUse(0, 1, share),)),
    )


def of(*sessions: plan.Session) -> dict[str, Figures]:
    tiers = {
        "gold": plan.Tier("gold", priority=2, guaranteed_share=1000),
        "silver": plan.Tier("silver", priority=1, guaranteed_share=500),
    }
    tenants = {
        "a": plan.Tenant("a", frozenset({"gold", "silver"})),
        "b": plan.Tenant("b", frozenset({"silver"}), guarantees={"silver": 200}),
    }
    known = {session.key: session for session in sessions}
    return figures(plan.State(now=0.0, nodes={}, sessions=known, tiers=tiers, tenants=tenants))


def test_what_is_above_a_tiers_guarantee_is_borrowed() -> None:
    found = of(placed("1", "b", "silver", 300))
    assert found["b"] == Figures(used=300, borrowed=100, reclaimable=0, sessions=1)


def test_a_tenant_can_take_back_what_others_borrow_up_to_its_own_unused_guarantee() -> None:
    found = of(placed("1", "b", "silver", 300), placed("2", "a", "gold", 1000))
    assert found["a"] == Figures(used=1000, borrowed=0, reclaimable=100, sessions=1)
    found = of(placed("1", "b", "silver", 5000))
    assert found["a"].reclaimable == 1500


def test_what_one_tier_leaves_is_no_room_of_another() -> None:
    found = of(placed("1", "a", "silver", 700))
    assert found["a"].borrowed == 200


def test_sessions_of_no_tenant_borrow_everything() -> None:
    found = of(placed("1", "", "gold", 400))
    assert found["a"].reclaimable == 400
    assert found["a"].sessions == 0


def test_what_is_paused_uses_nothing() -> None:
    resting = dataclasses.replace(placed("1", "a", "gold", 100), phase=plan.Phase.PAUSED)
    assert of(resting)["a"] == Figures(used=0, borrowed=0, reclaimable=0, sessions=0)
