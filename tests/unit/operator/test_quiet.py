"""What only repeats with other numbers is held back for a while, and then told."""

from sojourn_operator.session.quiet import ROOM, Quiet


def test_whoever_spoke_keeps_still_for_a_while() -> None:
    quiet = Quiet(5.0)
    assert quiet.until("a", now=0.0) is None
    quiet.spoke("a", now=0.0)
    assert quiet.until("a", now=4.9) == 5.0
    assert quiet.until("a", now=5.0) is None


def test_others_are_free_to_speak() -> None:
    quiet = Quiet(5.0)
    quiet.spoke("a", now=0.0)
    assert quiet.until("b", now=1.0) is None


def test_it_forgets_those_that_may_speak_anyway() -> None:
    quiet = Quiet(5.0)
    for number in range(10 * ROOM):
        quiet.spoke(str(number), now=float(number))
    assert len(quiet._spoke) <= ROOM + 1
