"""Figures of fragmentation, checked by hand and by property."""

from hypothesis import given
from hypothesis import strategies as st
from sojourn_deviceplugin import fragmentation as frag

free_rooms = st.lists(st.integers(0, 300), max_size=16)


def test_scatter_is_what_lies_outside_the_emptiest_gpu() -> None:
    assert frag.scatter_percent([40, 0]) == 0
    assert frag.scatter_percent([20, 20]) == 50
    assert frag.scatter_percent([10, 10, 10, 10]) == 75
    assert frag.scatter_percent([]) == 0
    assert frag.scatter_percent([0, 0]) == 0


def test_stranded_slices_are_those_that_a_size_cannot_use() -> None:
    assert frag.stranded([10, 20, 5], size=12) == 15
    assert frag.stranded([10, 20, 5], size=5) == 0


def test_the_expected_fragment_weighs_sizes_by_use() -> None:
    assert frag.expected_fragment([10, 20], {15: 3, 5: 1}) == 7.5
    assert frag.fragment_percent([10, 20], {15: 3, 5: 1}) == 25


def test_with_no_session_nobody_can_know() -> None:
    assert frag.expected_fragment([10, 20], {}) is None
    assert frag.fragment_percent([10, 20], {}) is None


@given(free_rooms, st.dictionaries(st.integers(1, 300), st.integers(1, 9), max_size=5))
def test_figures_stay_within_their_bounds(free: list[int], sizes: dict[int, int]) -> None:
    assert 0 <= frag.scatter_percent(free) <= 100
    percent = frag.fragment_percent(free, sizes)
    assert percent is None or 0 <= percent <= 100


@given(free_rooms, st.integers(1, 300))
def test_larger_sessions_strand_no_less(free: list[int], size: int) -> None:
    assert frag.stranded(free, size=size) <= frag.stranded(free, size=size + 1)
