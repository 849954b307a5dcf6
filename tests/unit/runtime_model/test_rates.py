"""The rate model is found back from its own figures, and gives a model's share of decode."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_runtime.model.rates import RateModel, decode_fraction, fit

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)

models = st.builds(
    RateModel,
    rate=st.floats(1, 1e5),
    slope=st.floats(1e-5, 1e-3),
    knee=st.floats(0, 500),
    exponent=st.floats(0.5, 1.5),
)


@settings(max_examples=25)
@given(models)
def test_known_parameters_give_the_same_rates_again(known: RateModel) -> None:
    found = fit(LENGTHS, [known.at(length) for length in LENGTHS])
    for length in range(64, 8193, 64):
        assert found.at(length) == pytest.approx(known.at(length), rel=0.01)


def test_known_parameters_are_found_back() -> None:
    known = RateModel(rate=180, slope=0.0008, knee=200, exponent=1.1)
    found = fit(LENGTHS, [known.at(length) for length in LENGTHS])
    assert found.rate == pytest.approx(180, rel=1e-3)
    assert found.knee == pytest.approx(200, rel=0.02)
    assert found.exponent == pytest.approx(1.1, rel=0.01)
    assert found.slope == pytest.approx(0.0008, rel=0.05)


def test_a_device_that_never_slows_down_is_flat() -> None:
    found = fit(LENGTHS, [50.0] * len(LENGTHS))
    assert found.at(100_000) == pytest.approx(50, rel=1e-6)


def test_rates_that_rise_with_the_length_are_noise() -> None:
    found = fit(LENGTHS, [50.0 + index for index in range(len(LENGTHS))])
    assert found.slope == pytest.approx(0, abs=1e-9)


def test_three_lengths_say_nothing_about_four_parameters() -> None:
    with pytest.raises(ValueError, match="3 lengths: the model needs 4"):
        fit((1, 2, 3, 3), (1.0, 1.0, 1.0, 1.0))


def test_the_share_of_decode_is_that_of_the_reference_gpu_where_the_gpu_is_known() -> None:
    # an H100 has 3.35/2.039 of its bandwidth and 989/312 of its arithmetic
    assert decode_fraction(decode_s=3, prefill_s=1, device="some CPU") == 750
    on_reference = decode_fraction(decode_s=3, prefill_s=1, device="NVIDIA H100 80GB HBM3")
    assert on_reference == round(1000 * 3 * (3.35 / 2.039) / (3 * (3.35 / 2.039) + 989 / 312))
