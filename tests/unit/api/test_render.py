"""What a rendered status says in columns, and what it leaves out."""

import pytest
from sojourn_api import names, objects, parse, render
from sojourn_api.shipped import SHIPPED_TIERS

PLACE = objects.GpuPlace(ordinal=0, uuid="GPU-1", model="A100-80GB", slices=12, share=1000)
SECOND = objects.GpuPlace(ordinal=3, uuid="GPU-4", model="A100-80GB", slices=12, share=1000)


def condition(kind: str, status: str, reason: str, message: str = "") -> objects.Condition:
    return objects.Condition(type=kind, status=status, reason=reason, message=message)


def placed(status: str, *gpus: objects.GpuPlace) -> objects.SessionStatus:
    return objects.SessionStatus(
        conditions=(condition("Ready", "True", "Serving"), condition("Placed", status, "Placed")),
        placement=objects.SessionPlacement("node-a", gpus),
    )


def test_columns_show_node_and_gpu_of_a_placed_session() -> None:
    raw = render.status_to_raw(placed("True", PLACE))
    shown = {column: raw[column] for column in ("ready", "reason", "node", "gpu")}
    assert shown == {
        "ready": "True",
        "reason": "Serving",
        "node": "node-a",
        "gpu": "gpu-0 A100-80GB",
    }


def test_columns_name_the_gpu_model_once_for_two_shards() -> None:
    assert render.status_to_raw(placed("True", PLACE, SECOND))["gpu"] == "gpu-0 gpu-3 A100-80GB"


def test_columns_hide_the_last_place_of_a_paused_session() -> None:
    raw = render.status_to_raw(placed("False", PLACE))
    assert "node" not in raw
    assert "gpu" not in raw


def test_a_session_nobody_judged_yet_is_unknown_and_pending() -> None:
    raw = render.status_to_raw(objects.SessionStatus())
    assert (raw["ready"], raw["reason"]) == ("Unknown", "Pending")


def test_absent_facts_are_left_out_so_that_apply_removes_them() -> None:
    raw = render.status_to_raw(objects.SessionStatus())
    assert set(raw) == {"epoch", "exact", "failures", "ready", "reason"}


def test_a_message_beyond_the_bound_is_cut_rather_than_refused() -> None:
    long = condition(names.READY, "False", "Waiting", "x" * 10_000)
    (raw,) = render.conditions_to_raw([long])
    assert raw["message"] == "x" * (render.MAX_MESSAGE - 3) + "..."


def test_a_condition_without_time_takes_the_time_of_the_defaults() -> None:
    (raw,) = render.conditions_to_raw([condition(names.READY, "Unknown", "Pending")])
    assert raw["lastTransitionTime"] == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize("tier", SHIPPED_TIERS, ids=lambda tier: tier.meta.name)
def test_a_shipped_tier_is_valid(tier: objects.Tier) -> None:
    assert parse.parse_tier(render.tier_to_raw(tier)) == tier


def test_gold_is_pausable_by_nobody_and_bronze_has_no_target() -> None:
    gold, silver, bronze = SHIPPED_TIERS
    assert gold.pausable_by == ()
    assert silver.pausable_by == ("gold",)
    assert bronze.pausable_by == ("gold", "silver")
    assert "target" not in render.tier_to_raw(bronze)["spec"]  # type: ignore[operator]


def test_a_tier_is_pausable_only_by_tiers_of_a_higher_priority() -> None:
    by_name = {tier.meta.name: tier for tier in SHIPPED_TIERS}
    for tier in SHIPPED_TIERS:
        assert all(by_name[name].priority > tier.priority for name in tier.pausable_by)
