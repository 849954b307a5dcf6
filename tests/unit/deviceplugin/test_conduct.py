"""Who computed under a higher flag, from two looks."""

from dataclasses import replace

import pytest
from sojourn_api.arbiter import Limits, PageState
from sojourn_deviceplugin.conduct import Offence, Seen, offences

NOW = 10_000_000_000
LIMITS = Limits()
IDLE = PageState(
    flag=2,
    since_ns=NOW - 5_000_000_000,
    beat_ns=NOW,
    steps=100,
    steps_done=100,
    wants=False,
    turn_since_ns=0,
    served_ns=0,
    credit=0,
    yielded_ns=0,
    locked=True,
    allocator=None,
)
UP = replace(IDLE, flag=3)


def looks(gold: PageState, *, steps: int, silver: int = 1000) -> list[Offence]:
    """Gold's flag as it is over both looks; Silver takes steps in between."""
    before = {"1": Seen(2500, gold), "2": Seen(silver, IDLE)}
    after = {"1": Seen(2500, gold), "2": Seen(silver, replace(IDLE, steps=IDLE.steps + steps))}
    return offences(before, after, now_ns=NOW, limits=LIMITS)


def test_steps_under_a_standing_higher_flag_are_an_offence() -> None:
    assert looks(UP, steps=5) == [Offence(slot="2", steps=5, under="1")]


@pytest.mark.parametrize("steps", [0, 1])
def test_the_step_of_the_instant_before_is_none(steps: int) -> None:
    assert looks(UP, steps=steps) == []


@pytest.mark.parametrize(
    "gold",
    [
        IDLE,
        replace(UP, locked=False),
        replace(UP, beat_ns=NOW - 2_000_000_000),
        replace(UP, since_ns=NOW - 200_000_000_000),
    ],
)
def test_a_flag_that_does_not_count_forbids_nothing(gold: PageState) -> None:
    assert looks(gold, steps=50) == []


def test_equals_do_not_forbid_one_another() -> None:
    assert looks(UP, steps=50, silver=2500) == []


def test_a_flag_that_fell_in_between_forbids_nothing() -> None:
    before = {"1": Seen(2500, UP), "2": Seen(0, IDLE)}
    after = {"1": Seen(2500, replace(UP, flag=5)), "2": Seen(0, replace(IDLE, steps=120))}
    assert offences(before, after, now_ns=NOW, limits=LIMITS) == []
