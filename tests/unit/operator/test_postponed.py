"""A session that cannot be written yet starts later, and keeps nobody from his turn."""

from sojourn_operator.plan import Phase, PlaceSession, Planner, State
from sojourn_operator.plan.state import Nomination
from sojourn_operator.planning import postponed

from tests.unit.plan_builders import node, on, session, state


def placed(world: State, *, most: int | None = None) -> list[str]:
    actions = Planner(most=most).plan(world).actions
    return [one.session for one in actions if isinstance(one, PlaceSession)]


def test_those_behind_it_start() -> None:
    world = state([node("a")], [session("first", slices=20), session("second", slices=20)])
    assert placed(world, most=1) == ["llm/first"]
    late = postponed(world, {"llm/first": 20.0})
    assert placed(late, most=1) == ["llm/second"]
    assert Planner(most=2).plan(late).next_deadline == world.now + 20.0


def test_its_turn_is_not_before_its_own_back_off() -> None:
    world = state([node("a")], [session("first", not_before=2000.0)])
    late = postponed(world, {"llm/first": 20.0, "gone": 5.0})
    assert late.sessions["llm/first"].not_before == 2000.0
    assert postponed(world, {"gone": 5.0}) is world


def test_it_keeps_the_room_that_is_being_freed_for_it() -> None:
    wish = Nomination(on("a", slices=60), victims=(), expires=2000.0)
    gold = session("gold", "gold", 60, nomination=wish, phase=Phase.PAUSED)
    world = postponed(state([node("a")], [gold, session("low", slices=60)]), {"llm/gold": 5.0})
    assert placed(world) == []
