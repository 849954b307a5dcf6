"""What one pass learns: what failed is left alone, and all of it if the API server has enough."""

import pytest
from sojourn_operator.act.api import ApiError
from sojourn_operator.leader import NotLeaderError
from sojourn_operator.onepass import LONGEST_SECONDS, OnePass
from sojourn_operator.patience import FIRST_SECONDS, Patience

from tests.unit.operator.test_patience import Clock


def begun(patience: Patience | None = None) -> OnePass:
    found = OnePass(1000.0, patience or Patience(Clock()))
    found.begin()
    return found


def fail(this: OnePass, key: str, error: Exception) -> None:
    with this.trying(key, "step"):
        raise error


def refusal(status: int, retry_after: float = 0.0) -> ApiError:
    return ApiError("PATCH Pod", status=status, message="no", retry_after=retry_after)


@pytest.mark.parametrize("error", [refusal(409), refusal(500), KeyError("a fault of ours")])
def test_what_failed_is_left_alone_and_others_go_on(error: Exception) -> None:
    this = begun()
    fail(this, "team/chat", error)
    assert not this.may("team/chat")
    assert not this.may("team/other", "team/chat")
    assert this.may("team/other")
    assert not this.over()


def test_it_is_tried_again_in_a_later_pass_and_not_before_its_time() -> None:
    clock = Clock()
    patience = Patience(clock)
    fail(begun(patience), "team/chat", refusal(409))
    assert not begun(patience).may("team/chat")
    clock.now += FIRST_SECONDS
    assert begun(patience).may("team/chat")


def test_what_the_plan_was_made_without_is_left_alone_though_its_time_has_come() -> None:
    clock = Clock()
    patience = Patience(clock)
    fail(begun(patience), "team/chat", refusal(409))
    this = begun(patience)
    assert this.leave() == {"team/chat": FIRST_SECONDS}
    clock.now += FIRST_SECONDS
    assert not this.may("team/chat")
    assert this.may("team/other")
    assert begun(patience).may("team/chat")


@pytest.mark.parametrize("status", [0, 429, 503])
def test_an_api_server_that_has_enough_ends_the_writing(status: int) -> None:
    clock = Clock()
    patience = Patience(clock)
    this = begun(patience)
    fail(this, "team/chat", refusal(status, retry_after=5.0))
    assert this.over()
    clock.now += 4.9
    assert begun(patience).over()
    clock.now += 0.1
    assert not begun(patience).over()


def test_what_fails_side_by_side_is_one_complaint() -> None:
    """Time-outs of one pass come in one after another: each would double the wait."""
    clock = Clock()
    patience = Patience(clock)
    this = begun(patience)
    for number in range(20):
        fail(this, f"team/{number}", refusal(0))
        clock.now += FIRST_SECONDS
    assert not begun(patience).over()


def test_who_does_not_lead_ends_the_pass() -> None:
    this = begun()
    with pytest.raises(NotLeaderError):
        fail(this, "team/chat", NotLeaderError("another leads"))
    assert this.may("team/chat")


def test_the_next_pass_comes_with_the_earliest_deadline() -> None:
    this = begun()
    assert this.next() == 1000.0 + LONGEST_SECONDS
    for when in (1040.0, None, 1030.0, 1050.0):
        this.due(when)
    assert this.next() == 1030.0
