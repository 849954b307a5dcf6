"""Plugins are found by entry point, and one that fails does not take the operator along."""

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from itertools import count
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sojourn_operator import plan
from sojourn_operator.plan.generations import FAILED, SLOW, TRY_AGAIN_SECONDS
from sojourn_operator.plan.plugins import GROUP_GENERATION, GROUP_PRE, Plugins
from sojourn_operator.planning import Planning, load, offered

from tests.unit.operator.test_poison import NOW, Rig


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


class Moody:
    """A plugin that fails until it is mended, under a clock that a test moves."""

    def __init__(self) -> None:
        self.mended = False
        self.now = 0.0

    def __call__(self, _: plan.State, sessions: Sequence[plan.Session]) -> list[plan.Session]:
        if not self.mended:
            raise ZeroDivisionError(len(sessions))
        return list(sessions)

    def planning(self) -> Planning:
        return Planning(Plugins(pre=(("moody", self),)), clock=lambda: self.now)


def fallbacks(cause: str) -> float:
    name = "sojourn_operator_plan_fallbacks_total"
    return REGISTRY.get_sample_value(name, {"cause": cause}) or 0.0


def test_a_fallback_is_counted_by_its_cause_and_its_end_is_told() -> None:
    plugin, before = Moody(), fallbacks(FAILED)
    planning = plugin.planning()
    for _ in range(3):
        planning.plan(waiting("team/a"))
    planning.news()
    assert fallbacks(FAILED) == before + 1
    assert REGISTRY.get_sample_value("sojourn_operator_plan_fallback") == 1
    plugin.mended = True
    plugin.now += TRY_AGAIN_SECONDS
    planning.plan(waiting("team/a"))
    assert planning.news() == "with-plugins decides now: it works again"
    assert REGISTRY.get_sample_value("sojourn_operator_plan_fallback") == 0
    assert fallbacks(FAILED) == before + 1


@pytest.mark.parametrize(("limit", "slow"), [(0.8, True), (1.5, False)])
def test_how_long_a_decision_may_take_is_a_setting(limit: float, *, slow: bool) -> None:
    """The clock goes on by a second between any two looks."""
    before, ticks = fallbacks(SLOW), count()
    planning = Planning(Plugins(), slow_seconds=limit, clock=lambda: float(next(ticks)))
    planning.plan(waiting("team/a"))
    assert ("took 1000 ms a decision" in planning.news()) is slow
    assert fallbacks(SLOW) == before + slow


def test_each_change_of_the_generation_is_an_event_on_the_lease() -> None:
    rig, plugin = Rig(), Moody()
    rig.loop._planning = plugin.planning()
    rig.add("chat", {"resources": {"requests": {"cpu": "64"}}})

    def told(later: int) -> list[str]:
        rig.loop.run_once(NOW + later)
        lease = "sojourn-operator", "GenerationChanged"
        return [text for *about, text in rig.server.events if tuple(about) == lease]

    assert [len(told(later)) for later in range(3)] == [0, 0, 1]
    plugin.mended = True
    plugin.now += TRY_AGAIN_SECONDS
    assert told(4)[-1] == "with-plugins decides now: it works again"
    plugin.mended = False
    assert [len(told(later)) for later in range(5, 8)] == [2, 2, 3], "the same words are told again"


class Other:
    """A generation of another distribution: nobody starts."""

    api_version = 2
    works = True

    def plan(self, _: plan.State) -> plan.Plan:
        if not self.works:
            raise ZeroDivisionError
        return plan.Plan((), None)


class Foreign(Other):
    api_version = 7


class Unnumbered:
    """Says no version."""


def of(kind: type) -> EntryPoint:
    return EntryPoint(kind.__name__.lower(), f"{__name__}:{kind.__name__}", GROUP_GENERATION)


def test_a_generation_of_another_distribution_decides_until_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = Planning(Plugins(), offered=offered(entries(of(Other))))
    assert planning.plan(waiting("team/a")).actions == ()
    assert planning.news() == ""
    monkeypatch.setattr(Other, "works", False)
    for _ in range(3):
        assert planning.plan(waiting("team/a")).actions
    assert planning.news().startswith("with-plugins decides now: generation other failed 3 times")


def test_a_generation_for_another_version_never_decides_and_that_is_told() -> None:
    planning = Planning(Plugins(), offered=offered(entries(of(Foreign))))
    assert planning.plan(waiting("team/a")).actions
    told = "with-plugins decides now: generation foreign is made for version 7, not 2"
    assert planning.news() == told


def test_whatever_fails_behind_it_is_told_too() -> None:
    plugins = Plugins(pre=(("broken", broken),))
    planning = Planning(plugins, offered=offered(entries(of(Foreign))))
    for _ in range(3):
        planning.plan(waiting("team/a"))
    told = planning.news()
    assert told.startswith("built-in decides now: generation foreign is made for version 7")
    assert "; generation with-plugins failed 3 times" in told


def test_a_generation_that_cannot_be_made_is_left_out() -> None:
    missing = EntryPoint("missing", "no_such_module:Thing", GROUP_GENERATION)
    assert offered(entries(missing)) is None
    assert offered(entries(of(Unnumbered))) is None
    assert offered(entries()) is None
