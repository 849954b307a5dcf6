"""Whether the engine gets on, by a clock that the test moves."""

import pytest
from sojourn_runtime.pulse import LONG_SECONDS, STALL_SECONDS, STEP, STORE, Pulse


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulse(clock: Clock) -> Pulse:
    return Pulse(clock=clock)


def test_rest_is_no_stall(pulse: Pulse, clock: Clock) -> None:
    clock.now += 1e6
    assert pulse.stalled == ""
    pulse.works(STORE)
    pulse.rests()
    clock.now += 1e6
    assert (pulse.at, pulse.stalled) == ("", "")


def test_a_wait_beyond_the_limit_is_named_until_it_ends(pulse: Pulse, clock: Clock) -> None:
    pulse.works(STORE)
    clock.now += STALL_SECONDS
    assert pulse.stalled == ""
    clock.now += 0.1
    assert pulse.stalled == STORE
    pulse.works(STEP)
    assert pulse.stalled == ""


def test_a_backlog_that_gets_shorter_is_no_stall(pulse: Pulse, clock: Clock) -> None:
    pulse.works(STORE)
    for _ in range(5):
        clock.now += 0.9 * STALL_SECONDS
        pulse.moves()
        assert pulse.stalled == ""
    clock.now += 1.1 * STALL_SECONDS
    assert pulse.stalled == STORE


def test_the_first_pass_has_more_time(pulse: Pulse, clock: Clock) -> None:
    pulse.computes(tokens=1)
    clock.now += LONG_SECONDS
    assert pulse.stalled == ""
    clock.now += 1
    assert pulse.stalled == STEP


@pytest.mark.parametrize(
    ("tokens", "limit"), [(1, STALL_SECONDS), (200, 0.025 * 4 * 200), (10_000, LONG_SECONDS)]
)
def test_a_pass_over_many_tokens_has_the_time_that_its_pace_asks(
    pulse: Pulse, clock: Clock, tokens: int, limit: float
) -> None:
    pulse.computed(tokens=8, seconds=0.2)
    pulse.computes(tokens=tokens)
    clock.now += limit - 0.01
    assert pulse.stalled == ""
    clock.now += 0.02
    assert pulse.stalled == STEP


def test_a_write_that_ends_while_the_engine_rests_wakes_nothing(pulse: Pulse, clock: Clock) -> None:
    """Whoever tells of it is another thread, and comes late."""
    pulse.works(STORE)
    pulse.rests()
    pulse.moves()
    clock.now += 1e6
    assert pulse.stalled == ""
