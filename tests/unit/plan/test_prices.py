"""Prices are the optimum of the cutting-stock program: checked by its own dual."""

from math import isclose

from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_operator.plan.prices import GPU, best_load, prices, worths

MIXES = st.dictionaries(st.integers(1, 100).map(lambda n: 10 * n), st.integers(1, 50), min_size=1)


@settings(max_examples=80, deadline=None)
@given(MIXES)
def test_no_load_of_one_gpu_is_worth_more_than_a_gpu_and_the_mix_pays_for_all(
    mix: dict[int, float],
) -> None:
    found = prices(mix)
    worth, _ = best_load(found.of, sorted(mix))
    assert worth <= 1 + 1e-6
    assert isclose(sum(mix[size] * found.of[size] for size in mix), found.gpus, rel_tol=1e-6)
    assert found.gpus >= sum(size * count for size, count in mix.items()) / GPU - 1e-6


def test_thirds_and_a_size_that_fits_with_nothing() -> None:
    found = prices({330: 9, 810: 4})
    assert isclose(found.gpus, 3 + 4, rel_tol=1e-9)
    assert isclose(found.of[810], 1.0, rel_tol=1e-9)


def test_a_remainder_that_nobody_asks_for_is_worth_nothing() -> None:
    table = worths(prices({500: 10, 810: 1}).of)
    assert table[190] == 0.0
    assert table[499] == 0.0
    assert isclose(table[500], 0.5)
    assert isclose(table[1000], 1.0)
