"""Plugins, two generations, and the comparison of decisions."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sojourn_operator.plan import Pause, PlaceSession, Plan, Planner, Session, State, Wait
from sojourn_operator.plan.actions import Action
from sojourn_operator.plan.compare import Likeness, compare
from sojourn_operator.plan.generations import TRY_AGAIN_SECONDS, Generation, Generations
from sojourn_operator.plan.plugins import API_VERSION, PluginError, Plugins, adapt

from tests.unit.plan_builders import node, on, running, session, state

TWO = state([node("a")], [session("old", slices=60), session("young", slices=60, created=5.0)])


def youngest_first(_: State, sessions: Sequence[Session]) -> Sequence[Session]:
    return sorted(sessions, key=lambda one: -one.created)


def nobody(_: State, sessions: Sequence[Session]) -> Sequence[Session]:
    return sessions[:0]


def no_nominations(_: State, actions: Sequence[Action]) -> Sequence[Action]:
    return [one for one in actions if type(one).__name__ != "Nominate"]


def placed(found: Plan) -> list[str]:
    return [one.session for one in found.actions if isinstance(one, PlaceSession)]


def test_a_pre_plugin_orders_the_claimants() -> None:
    assert placed(Planner().plan(TWO)) == ["llm/old"]
    plugins = Plugins(pre=(("youngest", youngest_first),))
    assert placed(Planner(plugins=plugins).plan(TWO)) == ["llm/young"]


def test_a_plan_of_few_starts_serves_the_first_and_is_due_again_at_once() -> None:
    names = ("one", "two", "three")
    world = state([node("a")], [session(name, slices=20) for name in names])
    found = Planner(most=2).plan(world)
    assert placed(found) == placed(Planner().plan(world))[:2]
    assert found.next_deadline == world.now
    assert Planner(most=4).plan(world) == Planner().plan(world)


def none_of(*names: str) -> Plugins:
    """A plugin that lets none of these start."""

    def trim(_: State, actions: Sequence[Action]) -> Sequence[Action]:
        held = {f"llm/{name}" for name in names}
        return [one for one in actions if not (one.session in held and is_start(one))]

    return Plugins(post=(("none of them", trim),))


def is_start(action: Action) -> bool:
    return isinstance(action, PlaceSession)


def test_starts_that_a_plugin_holds_back_keep_nobody_from_his_turn() -> None:
    names = ("one", "two", "three", "four", "five")
    ages = enumerate(names)
    world = state([node("a")], [session(name, slices=10, created=age) for age, name in ages])
    found = Planner(plugins=none_of("one", "two"), most=1).plan(world)
    assert placed(found) == ["llm/three", "llm/four"]
    assert found.next_deadline == world.now
    nobody_left = Planner(plugins=none_of(*names), most=1).plan(world)
    assert placed(nobody_left) == []
    assert nobody_left.next_deadline is None, "nothing changes by itself"


def test_a_pre_plugin_that_loses_sessions_is_refused_by_name() -> None:
    with pytest.raises(PluginError, match="plugin nobody added or lost sessions"):
        Planner(plugins=Plugins(pre=(("nobody", nobody),))).plan(TWO)


def test_nobody_is_paused_for_a_nomination_that_a_post_plugin_holds_back() -> None:
    world = state([node("a")], [running("s", on("a", slices=80)), session("g", "gold")])
    plugins = Plugins(post=(("none", no_nominations),))
    assert not [
        one for one in Planner(plugins=plugins).plan(world).actions if isinstance(one, Pause)
    ]


def test_an_older_signature_is_adapted_and_an_unknown_version_refused() -> None:
    def first(sessions: Sequence[Session]) -> Sequence[Session]:
        return sessions[::-1]

    first.api_version = 1  # type: ignore[attr-defined]
    plugins = Plugins(pre=(("first", adapt("first", first, kind="pre")),))
    assert placed(Planner(plugins=plugins).plan(TWO)) == ["llm/young"]
    first.api_version = 9  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="written for version 9 of the pre interface"):
        adapt("first", first, kind="pre")
    with pytest.raises(PluginError, match="declares no api_version"):
        adapt("mute", youngest_first, kind="pre")


class Broken:
    """Raises until it is mended; may take its time."""

    def __init__(self) -> None:
        self.mended = False
        self.seconds = 0.0
        self.clock = 0.0

    def plan(self, state: State) -> Plan:
        self.clock += self.seconds
        if not self.mended:
            raise RuntimeError("boom")
        return Planner().plan(state)

    def now(self) -> float:
        return self.clock


def test_the_old_generation_takes_over_after_three_failures_and_gives_back() -> None:
    new = Broken()
    both = Generations(Generation("new", new), Generation("old", Planner()), clock=new.now)
    for _ in range(3):
        assert placed(both.plan(TWO)) == ["llm/old"]
    assert (both.active, both.fallbacks) == ("old", 1)
    assert both.reason == "generation new failed 3 times in a row: RuntimeError: boom"
    new.mended = True
    both.plan(TWO)
    assert both.active == "old"
    new.clock += TRY_AGAIN_SECONDS
    both.plan(TWO)
    assert (both.active, both.reason) == ("new", "")


def test_a_slow_decision_and_another_version_make_the_old_one_decide() -> None:
    new = Broken()
    new.mended, new.seconds = True, 1.5  # for two decisions
    both = Generations(Generation("new", new), Generation("old", Planner()), clock=new.now)
    assert placed(both.plan(TWO)) == ["llm/old"]
    assert both.active == "new"
    new.seconds = 1.8
    assert placed(both.plan(TWO)) == ["llm/old"]
    assert both.reason == "generation new took 900 ms a decision, the limit is 800"
    odd = Generation("odd", new, api_version=API_VERSION + 1)
    other = Generations(odd, Generation("old", Planner()), clock=new.now)
    assert other.active == "old"
    new.clock += 10 * TRY_AGAIN_SECONDS
    other.plan(TWO)
    assert other.active == "old"


class Reversed:
    """Says the same in another order."""

    def plan(self, state: State) -> Plan:
        found = Planner().plan(state)
        return replace(found, actions=found.actions[::-1])


class Idle:
    """Lets everybody wait."""

    def plan(self, state: State) -> Plan:
        return Plan(tuple(Wait(key, "NoRoom", "later") for key in state.sessions), None)


def test_decisions_are_compared_up_to_their_order_and_to_the_first_difference() -> None:
    assert compare(Planner(), Planner(), [TWO, TWO]).likeness is Likeness.EQUAL
    assert compare(Planner(), Reversed(), [TWO]).likeness is Likeness.REORDERED
    found = compare(Planner(), Idle(), [TWO])
    assert found.likeness is Likeness.DIFFERENT
    assert found.first.startswith("state 0: the old one says PlaceSession llm/old (Placed:")


def test_a_pause_before_the_nomination_that_it_is_for_is_another_decision() -> None:
    claims = [session("g", "gold", slices=70), session("h", "gold", slices=70)]
    held = [running(f"s{i}", on("a", i, slices=80)) for i in range(2)]
    found = compare(Planner(), Reversed(), [state([node("a", 2)], [*held, *claims])])
    assert found.likeness is Likeness.DIFFERENT
    assert found.first.startswith("state 0: the new one says Pause llm/s")
    assert "at another point" in found.first


class Regrouped:
    """All nominations first, then all pauses, each in its old order from the end."""

    def plan(self, state: State) -> Plan:
        found = Planner().plan(state)
        backwards = found.actions[::-1]
        pauses = [one for one in backwards if isinstance(one, Pause)]
        others = [one for one in backwards if not isinstance(one, Pause)]
        return replace(found, actions=(*others, *pauses))


def test_pauses_may_change_places_behind_their_nominations() -> None:
    claims = [session("g", "gold", slices=70), session("h", "gold", slices=70)]
    held = [running(f"s{i}", on("a", i, slices=80)) for i in range(2)]
    found = compare(Planner(), Regrouped(), [state([node("a", 2)], [*held, *claims])])
    assert (found.likeness, found.first) == (Likeness.REORDERED, "")


def test_an_older_post_plugin_gets_the_actions_alone() -> None:
    def first(actions: Sequence[Action]) -> Sequence[Action]:
        return [one for one in actions if not isinstance(one, Wait)]

    first.api_version = 1  # type: ignore[attr-defined]
    plugins = Plugins(post=(("first", adapt("first", first, kind="post")),))
    found = Planner(plugins=plugins).plan(TWO)
    assert [type(one) for one in found.actions] == [PlaceSession]
