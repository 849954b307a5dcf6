"""Whether two generations decide alike on recorded states: equal, equal but for order, or not.

The order of actions for unlike sessions carries no meaning, except that a nomination comes
before the pauses that it is for; that of one session's actions does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sojourn_operator.plan.actions import Action, Nominate, Pause, Plan
from sojourn_operator.plan.generations import Plans
from sojourn_operator.plan.state import State


class Likeness(StrEnum):
    """How two lists of plans compare, best first."""

    EQUAL = "equal"
    REORDERED = "equal up to order"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict, and of the first difference the number of the state and both sides' words."""

    likeness: Likeness
    states: int
    first: str = ""


def compare(old: Plans, new: Plans, states: Iterable[State]) -> Comparison:
    """Plan every state by both, up to the first difference."""
    likeness, count = Likeness.EQUAL, 0
    for number, state in enumerate(states):
        count += 1
        before, after = old.plan(state), new.plan(state)
        if before.actions == after.actions:
            continue
        if sorted(map(repr, before.actions)) != sorted(map(repr, after.actions)):
            return Comparison(Likeness.DIFFERENT, count, _difference(number, before, after))
        if bound := _bound(before.actions, after.actions):
            return Comparison(Likeness.DIFFERENT, count, f"state {number}: {bound}")
        if likeness is Likeness.EQUAL:
            likeness = Likeness.REORDERED
    return Comparison(likeness, count)


def _bound(before: Sequence[Action], after: Sequence[Action]) -> str:
    """Which order that means something is another one, empty if none is."""
    for one in before:
        if _place(one, before) != _place(one, after):
            return f"the new one says {_told(one)} at another point among those that it depends on"
    return ""


def _place(action: Action, actions: Sequence[Action]) -> list[str]:
    """What comes before an action of those whose order with it means something."""
    by = action.by if isinstance(action, Pause) else ""
    return [
        repr(one)
        for one in actions[: actions.index(action)]
        if one.session == action.session or (isinstance(one, Nominate) and one.session == by)
    ]


def _difference(number: int, before: Plan, after: Plan) -> str:
    gone = _lacking(before, after)
    come = _lacking(after, before)
    old = "nothing" if gone is None else _told(gone)
    new = "nothing" if come is None else _told(come)
    return f"state {number}: the old one says {old}, the new one {new}"


def _lacking(one: Plan, other: Plan) -> Action | None:
    return next((action for action in one.actions if action not in other.actions), None)


def _told(action: Action) -> str:
    return f"{type(action).__name__} {action.session} ({action.reason}: {action.message})"
