"""Which figures of a GPUNode are worth a write, and when."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_api.objects import AllocatorUse, GpuLoad
from sojourn_deviceplugin.figures import EVERY_SECONDS, FOREIGN_STEP, Figures, Steady, stepped

MIB = 1024**2
USE = AllocatorUse("a/x-1", reserved=1000 * MIB, used=500 * MIB, largest_free=400 * MIB)
LATER = 10 * EVERY_SECONDS


def busy(percent: int) -> Figures:
    return Figures(loads={0: GpuLoad(busy=percent)})


def holds(use: AllocatorUse | None) -> Figures:
    return Figures(allocators={0: (use,)} if use else {})


def after(*found: Figures, seconds: float = LATER) -> Figures:
    """What is told last, when these are found one after another."""
    steady = Steady()
    told = Figures()
    for number, figures in enumerate(found):
        told = steady.tell(figures, now=number * seconds)
    return told


def test_the_first_figures_are_told_at_once() -> None:
    assert after(busy(40)) == busy(40)


@pytest.mark.parametrize(("now", "told"), [(41, 40), (49, 40), (31, 40), (50, 50), (30, 30)])
def test_a_load_is_told_again_when_it_has_moved_by_ten_points(now: int, told: int) -> None:
    assert after(busy(40), busy(now)) == busy(told)


def test_a_slow_drift_is_followed() -> None:
    assert after(*map(busy, range(40, 61))) == busy(60)


def test_what_has_ended_is_told_as_zero() -> None:
    assert after(busy(9), busy(0)) == busy(0)


def test_noise_beside_zero_is_not_told() -> None:
    assert after(busy(9), busy(0), busy(1)) == busy(0)


def test_figures_change_no_more_often_than_every_fifteen_seconds() -> None:
    jumps = [busy(90 * (second % 2)) for second in range(60)]
    steady = Steady()
    told = [steady.tell(figures, now=float(second)) for second, figures in enumerate(jumps)]
    writes = sum(before != after for before, after in itertools.pairwise(told))
    assert writes <= 60 / EVERY_SECONDS
    assert busy(90) in told


def test_an_allocator_is_told_again_when_a_figure_has_moved_by_a_twentieth() -> None:
    near = replace(USE, used=549 * MIB)
    far = replace(USE, used=551 * MIB)
    assert after(holds(USE), holds(near)) == holds(USE)
    assert after(holds(USE), holds(far)) == holds(far)


def test_a_figure_that_becomes_known_is_told() -> None:
    known = replace(USE, inactive_split=7)
    assert after(holds(USE), holds(known)) == holds(known)


def test_what_becomes_unknown_is_taken_back_at_once() -> None:
    assert after(holds(USE), holds(None), seconds=0.1) == holds(None)
    gone = Figures(loads={0: GpuLoad(sm=None, busy=40)})
    before = Figures(loads={0: GpuLoad(sm=50, busy=40)})
    assert after(before, gone, seconds=0.1) == gone
    assert after(before, Figures(), seconds=0.1) == Figures()


def test_foreign_memory_is_told_in_steps_and_at_once() -> None:
    found = [Figures(foreign={0: 100 * MIB}), Figures(foreign={0: 600 * MIB})]
    assert after(found[0]).foreign == {0: FOREIGN_STEP}
    assert after(*found, seconds=0.1).foreign == {0: 3 * FOREIGN_STEP}


def test_foreign_memory_at_the_edge_of_a_step_does_not_flicker() -> None:
    edge = [FOREIGN_STEP - MIB, FOREIGN_STEP + MIB] * 5
    told = 0
    for size in edge:
        told = stepped(size, told)
        assert told == FOREIGN_STEP
    assert stepped(0, told) == 0


@given(st.lists(st.integers(0, 4 * FOREIGN_STEP), max_size=20))
def test_told_foreign_memory_is_never_far_from_the_truth(sizes: list[int]) -> None:
    told = 0
    for size in sizes:
        told = stepped(size, told)
        assert told % FOREIGN_STEP == 0
        assert bool(told) == bool(size)
        assert -FOREIGN_STEP // 4 <= told - size < FOREIGN_STEP * 5 // 4
