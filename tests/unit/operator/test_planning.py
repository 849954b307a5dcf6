"""Plugins are found by entry point, and one that fails does not take the operator along."""

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from sojourn_operator import plan
from sojourn_operator.plan.plugins import GROUP_PRE, Plugins
from sojourn_operator.planning import Planning, load


def entries(*offered: EntryPoint) -> Any:
    def find(*, group: str) -> Iterable[EntryPoint]:
        return [entry for entry in offered if entry.group == group]

    return find


def youngest_first(_: plan.State, sessions: Sequence[plan.Session]) -> list[plan.Session]:
    return sorted(sessions, key=lambda one: -one.created)


youngest_first.api_version = 2  # type: ignore[attr-defined]


def broken(_: plan.State, sessions: Sequence[plan.Session]) -> list[plan.Session]:
    raise ZeroDivisionError(len(sessions))


def too_new(_: plan.State) -> list[plan.Session]:
    return []


too_new.api_version = 99  # type: ignore[attr-defined]


def waiting(*names: str) -> plan.State:
    sessions = {
        name: plan.Session(
            key=name,
            tier="silver",
            request=plan.Request(slices=1),
            phase=plan.Phase.WAITING,
            created=0.0,
            since=0.0,
        )
        for name in names
    }
    tiers = {"silver": plan.Tier("silver", priority=1)}
    return plan.State(now=10.0, nodes={}, sessions=sessions, tiers=tiers)


def test_a_plugin_is_found_by_its_entry_point() -> None:
    offered = EntryPoint("young", f"{__name__}:youngest_first", GROUP_PRE)
    (found,) = load(entries(offered)).pre
    assert found[0] == "young"


def test_a_plugin_of_no_use_is_left_out() -> None:
    new = EntryPoint("new", f"{__name__}:too_new", GROUP_PRE)
    missing = EntryPoint("missing", "no_such_module:thing", GROUP_PRE)
    assert load(entries(new, missing)) == Plugins()


def test_the_built_in_generation_takes_over_from_a_failing_plugin_and_says_so_once() -> None:
    planning = Planning(Plugins(pre=(("broken", broken),)))
    for _ in range(3):
        assert planning.plan(waiting("team/a")).actions
    news = planning.news()
    assert "built-in decides now" in news
    assert "ZeroDivisionError" in news
    assert planning.news() == ""
