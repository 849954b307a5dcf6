"""Who computed under a higher flag, from two looks."""

from dataclasses import replace

import pytest
from sojourn_api.arbiter import Limits, PageState
from sojourn_deviceplugin.conduct import BUSY_PERCENT, SAMPLED_NS, Offence, Seen, offences

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
        replace(UP, since_ns=NOW + 2_000_000_000),  # forged: readers ignore it too
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


def busy(percent: int, *, stood_ns: int) -> list[Offence]:
    """A pod that never writes its page, while Gold's flag stands."""
    before = {"1": Seen(2500, UP), "2": Seen(1000, IDLE)}
    after = {"1": Seen(2500, UP, stood_ns=stood_ns), "2": Seen(1000, IDLE, busy_percent=percent)}
    return offences(before, after, now_ns=NOW, limits=LIMITS)


def test_the_drivers_figures_tell_of_a_pod_that_keeps_silent() -> None:
    (found,) = busy(40, stood_ns=SAMPLED_NS)
    assert (found.slot, found.steps, found.busy_percent) == ("2", 0, 40)


@pytest.mark.parametrize(
    ("percent", "stood_ns"), [(BUSY_PERCENT - 1, SAMPLED_NS), (100, SAMPLED_NS - 1)]
)
def test_the_rest_of_a_step_and_a_sample_of_before_the_flag_are_no_offence(
    percent: int, stood_ns: int
) -> None:
    assert busy(percent, stood_ns=stood_ns) == []


@pytest.mark.parametrize(("gold", "silver"), [((0, 2500), (0, 0)), ((2500, 2500), (2500, 1000))])
def test_who_is_promoted_in_between_is_judged_by_what_stood_all_the_time(
    gold: tuple[int, int], silver: tuple[int, int]
) -> None:
    steps = replace(IDLE, steps=IDLE.steps + 9)
    before = {"1": Seen(gold[0], UP), "2": Seen(silver[0], IDLE)}
    after = {"1": Seen(gold[1], UP), "2": Seen(silver[1], steps)}
    assert offences(before, after, now_ns=NOW, limits=LIMITS) == []
