"""Conditions: transition times move with the status alone, and all five are always there."""

from sojourn_api.names import PAUSED, PLACED, READY, SESSION_CONDITIONS
from sojourn_api.objects import SessionStatus
from sojourn_operator.act.status import Verdict, judged, of, since

THEN, LATER = 1_000_000.0, 1_000_060.0


def status(*verdicts: Verdict, now: float = THEN) -> SessionStatus:
    return judged(SessionStatus(), *verdicts, generation=1, now=now)


def test_all_five_are_there_from_the_first_judgement_on() -> None:
    found = status(Verdict(READY, "False", "Starting", "soon"))
    assert tuple(entry.type for entry in found.conditions) == SESSION_CONDITIONS
    assert {entry.status for entry in found.conditions[1:]} == {"Unknown"}
    assert all(entry.reason and entry.last_transition for entry in found.conditions)


def test_a_new_message_does_not_move_the_transition_time() -> None:
    first = status(Verdict(READY, "False", "Starting", "soon"))
    second = judged(
        first, Verdict(READY, "False", "WaitingForRoom", "later"), generation=2, now=LATER
    )
    assert since(second, READY) == THEN
    assert of(second, READY).message == "later"
    assert {entry.observed_generation for entry in second.conditions} == {2}


def test_a_new_status_moves_it() -> None:
    first = status(Verdict(READY, "False", "Starting", "soon"))
    second = judged(first, Verdict(READY, "True", "Serving", "now"), generation=1, now=LATER)
    assert since(second, READY) == LATER


def test_conditions_that_are_not_judged_stay_as_they_are() -> None:
    first = status(Verdict(PLACED, "True", "Placed", "on node-a"))
    second = judged(first, Verdict(PAUSED, "False", "Running", ""), generation=1, now=LATER)
    assert of(second, PLACED) == Verdict(PLACED, "True", "Placed", "on node-a")
    assert since(second, PLACED) == THEN


def test_the_same_judgement_twice_changes_nothing() -> None:
    first = status(Verdict(READY, "True", "Serving", "now"))
    again = judged(first, Verdict(READY, "True", "Serving", "now"), generation=1, now=LATER)
    assert again == first
