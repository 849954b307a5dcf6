"""A choice is a function of its inputs, follows the distribution asked for, and never changes
with a version.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sojourn_runtime.model.sampling import sample

Row = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Wish:
    """A request's sampling parameters."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = 7
    choice: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


GREEDY = Wish(temperature=0.0)
PROBABILITIES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
LOGITS: Row = np.log(PROBABILITIES).astype(np.float32)


def shares(wish: Wish, logits: Row = LOGITS, draws: int = 20_000) -> npt.NDArray[np.float64]:
    """How often each token is chosen over many positions."""
    tokens = [sample(logits, wish, position=position).token for position in range(draws)]
    return np.bincount(tokens, minlength=len(logits)) / draws


def assert_close(found: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> None:
    """Within four standard deviations of 20,000 draws, and exactly 0 where 0 is expected."""
    assert found[expected == 0].sum() == 0
    assert (np.abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / 20_000)).all()


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish(), PROBABILITIES),
        (Wish(seed=123456789012345), PROBABILITIES),
        (Wish(temperature=0.5), PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        (Wish(top_k=2), np.array([4 / 7, 3 / 7, 0, 0, 0])),
        (Wish(top_p=0.69), np.array([4 / 7, 3 / 7, 0, 0, 0])),
        (Wish(top_p=0.71), np.array([0.4, 0.3, 0.15, 0, 0]) / 0.85),
        (Wish(top_p=0.01), np.array([1.0, 0, 0, 0, 0])),
        (Wish(min_p=0.3), np.array([0.4, 0.3, 0.15, 0, 0]) / 0.85),
        (Wish(top_k=3, top_p=0.8), np.array([4 / 7, 3 / 7, 0, 0, 0])),
    ],
)
def test_the_distribution_is_the_one_asked_for(
    wish: Wish, expected: npt.NDArray[np.float64]
) -> None:
    assert_close(shares(wish), expected)


def test_choices_and_seeds_are_independent() -> None:
    def drawn(wish: Wish) -> Row:
        uniform = np.zeros(16, np.float32)
        return np.array([sample(uniform, wish, position=p).token for p in range(4000)])

    base = drawn(Wish())
    for other in (Wish(choice=1), Wish(seed=8), Wish(seed=7 + 2**32)):
        assert abs((base == drawn(other)).mean() - 1 / 16) < 0.02
    assert abs((base[1:] == base[:-1]).mean() - 1 / 16) < 0.02


@settings(deadline=None, max_examples=50)
@given(
    logits=arrays.arrays(np.float32, st.integers(1, 200), elements=st.floats(-50, 50, width=32)),
    wish=st.builds(
        Wish,
        temperature=st.just(0.0) | st.floats(0.0625, 3),
        top_p=st.floats(0.0625, 1),
        top_k=st.integers(0, 250),
        min_p=st.floats(0, 1),
    ),
    position=st.integers(0, 2**31 - 1),
)
def test_equal_inputs_give_equal_tokens_among_those_allowed(
    logits: Row, wish: Wish, position: int
) -> None:
    token = sample(logits, wish, position=position).token
    assert token == sample(logits.copy(), wish, position=position).token
    assert 0 <= token < len(logits)
    if wish.top_k:
        assert (logits > logits[token]).sum() < wish.top_k
    if wish.temperature > 0 and wish.min_p > 0:
        assert (logits[token] - logits.max()) / wish.temperature >= math.log(wish.min_p) - 1e-3


@settings(max_examples=50)
@given(arrays.arrays(np.float32, st.integers(1, 100), elements=st.integers(-3, 3)))
def test_greedy_takes_the_lowest_id_among_equals(logits: Row) -> None:
    assert sample(logits, GREEDY, position=0).token == int(np.argmax(logits))


def test_saved_choices_stay_what_they_were() -> None:
    """A snapshot holds seeds, not states: these numbers may change with a new kernel class only."""
    logits = np.sin(np.arange(1000, dtype=np.float32)) * 4
    wishes = (Wish(), Wish(top_p=0.9), Wish(top_k=40, temperature=0.7), Wish(min_p=0.1, choice=2))
    tokens = [[sample(logits, wish, position=p).token for p in range(6)] for wish in wishes]
    assert tokens == GOLDEN


GOLDEN = [
    [284, 108, 278, 743, 548, 510],
    [284, 108, 278, 743, 548, 510],
    [146, 630, 278, 743, 988, 567],
    [39, 762, 548, 335, 937, 491],
]


def test_the_tail_of_a_large_vocabulary_is_reached() -> None:
    """One token of half the mass, and 50,000 that share the other half."""
    logits = np.full(50_001, -math.log(100_000), np.float32)
    logits[0] = math.log(0.5)
    assert abs(shares(Wish(), logits, draws=600)[0] - 0.5) < 0.1


def test_penalties_count_as_openai_and_vllm_do() -> None:
    logits = np.array([3.0, 2.0, 1.0, -1.0], np.float32)

    def best(wish: Wish, **history: list[int]) -> int:
        return sample(logits, replace(wish, temperature=0.0), position=0, **history).token  # type: ignore[arg-type]

    assert best(Wish(presence_penalty=1.5), output=[0, 0, 0]) == 1
    assert best(Wish(presence_penalty=0.5), output=[0, 0, 0]) == 0
    assert best(Wish(frequency_penalty=0.5), output=[0, 0, 0]) == 1
    assert best(Wish(presence_penalty=1.5, frequency_penalty=1.5), prompt=[0]) == 0
    assert best(Wish(repetition_penalty=2.0), prompt=[0]) == 1
    assert best(Wish(repetition_penalty=5.0), prompt=[0], output=[1]) == 2


def test_repetition_pushes_negative_logits_down() -> None:
    logits = np.array([-1.0, -1.5], np.float32)
    wish = Wish(temperature=0.0, repetition_penalty=2.0)
    assert sample(logits, wish, position=0, prompt=[0]).token == 1


def test_bias_and_mask_decide() -> None:
    assert sample(LOGITS, replace(GREEDY, logit_bias=((4, 10.0),)), position=0).token == 4
    allowed = np.array([False, False, True, True, False])
    assert_close(shares_masked(allowed), np.array([0, 0, 0.6, 0.4, 0]))


def shares_masked(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    tokens = [sample(LOGITS, Wish(), position=p, allowed=allowed).token for p in range(20_000)]
    return np.bincount(tokens, minlength=5) / 20_000


def test_the_logits_given_are_left_alone() -> None:
    before = LOGITS.copy()
    allowed = np.array([True, False, True, True, True])
    wish = Wish(repetition_penalty=2.0, presence_penalty=1.0, logit_bias=((1, 5.0),))
    sample(LOGITS, wish, position=0, prompt=[1], output=[2], allowed=allowed)
    assert LOGITS.tobytes() == before.tobytes()


def test_logprobs_are_the_models_own() -> None:
    wish = replace(GREEDY, logprobs=2, logit_bias=((4, 10.0),))
    choice = sample(LOGITS, wish, position=0)
    assert choice.logprob == pytest.approx(math.log(0.05), abs=1e-6)
    assert [token for token, _ in choice.top] == [0, 1]
    assert [value for _, value in choice.top] == pytest.approx([math.log(0.4), math.log(0.3)])
    assert sample(LOGITS, replace(GREEDY, logprobs=0), position=0).top == ()
    assert sample(LOGITS, GREEDY, position=0).logprob is None
