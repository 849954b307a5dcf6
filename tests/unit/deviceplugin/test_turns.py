"""The rule of turns among equals, played without processes."""

from hypothesis import given
from hypothesis import strategies as st
from sojourn_api.arbiter_turn import Equal, joining_credit, next_turn


def equal(slot: str, credit: int, *, turn: bool = False) -> Equal:
    return Equal(slot=slot, credit=credit, turn=turn)


def test_alone_is_always_next() -> None:
    assert next_turn(equal("1", 10**12), [])


def test_who_has_had_the_least_goes_next() -> None:
    assert next_turn(equal("1", 5), [equal("2", 6)])
    assert not next_turn(equal("2", 6), [equal("1", 5)])


def test_nobody_goes_while_another_holds_the_turn() -> None:
    assert not next_turn(equal("1", 0), [equal("2", 6, turn=True)])


def test_idling_saves_nothing_up() -> None:
    assert joining_credit(3, [equal("1", 100), equal("2", 50)]) == 50
    assert joining_credit(70, [equal("1", 100), equal("2", 50)]) == 70
    assert joining_credit(3, []) == 3


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_of_any_crowd_exactly_one_goes_next(accounts: list[int]) -> None:
    crowd = [equal(str(n), credit) for n, credit in enumerate(accounts)]
    going = [one for one in crowd if next_turn(one, [o for o in crowd if o is not one])]
    assert len(going) == 1


@given(
    st.lists(st.integers(1, 4000), min_size=2, max_size=5),
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_time_is_shared_by_shares_whatever_the_lengths_of_steps(
    shares: list[int], steps: list[int]
) -> None:
    """Each is served to within one longest turn of its due."""
    had = [0] * len(shares)
    credit = [0] * len(shares)
    for turn in range(400):
        crowd = [equal(f"{n:03}", c) for n, c in enumerate(credit)]
        (goes,) = [
            n for n, one in enumerate(crowd) if next_turn(one, [o for o in crowd if o is not one])
        ]
        step = steps[turn % len(steps)] * 1_000_000
        had[goes] += step
        credit[goes] += step * 1000 // shares[goes]
    longest = 30 * 1_000_000 * 1000 // min(shares)
    assert max(credit) - min(credit) <= longest
