"""A mix trails the sessions with hysteresis."""

from sojourn_operator.plan import Mix, Request
from sojourn_operator.plan.mix import follow, mix_of

SMALL, LARGE = Request(slices=4), Request(slices=40)


def test_a_small_change_keeps_the_object_and_a_large_one_does_not() -> None:
    before = mix_of([SMALL] * 10 + [LARGE] * 10)
    assert follow(before, [SMALL] * 11 + [LARGE] * 9) is before
    after = follow(before, [SMALL] * 18 + [LARGE] * 2)
    assert dict(after.counts) == {SMALL: 18, LARGE: 2}


def test_growth_to_twice_the_size_counts_as_news_and_emptiness_does_not() -> None:
    first = follow(Mix(), [SMALL])
    assert first.total == 1
    assert follow(first, [SMALL] * 3).total == 3
    assert follow(first, []) is first
