"""The kernels' layout loses nothing but the bits beyond bf16."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sojourn_runtime.model import packing, rope
from sojourn_runtime.model.weights import Weights


@given(
    arrays.arrays(
        np.float32, 50, elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
    )
)
def test_bf16_is_the_nearest(values: packing.Floats) -> None:
    kept = packing.from_bf16(packing.to_bf16(values))
    assert (np.abs(kept - values) <= np.abs(values) * 2.0**-8).all()
    assert packing.from_bf16(packing.to_bf16(kept)).tobytes() == kept.tobytes()


def test_bf16_breaks_ties_to_even() -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert packing.from_bf16(packing.to_bf16(values)).tolist() == [1.0, 1 + 2**-6]


@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 100])
def test_panels_unpack_to_what_was_packed(outputs: int) -> None:
    weight = np.arange(outputs * 3, dtype=np.float32).reshape(outputs, 3) % 200
    assert packing.unpack(packing.panels(weight), outputs).tolist() == weight.tolist()


def test_gate_and_up_unpack_to_what_was_packed() -> None:
    gate, up = np.arange(96, dtype=np.float32).reshape(2, 16, 3)
    back = packing.unpack_gate_up(packing.panels(packing.gate_up_rows(gate, up)))
    assert [part.tolist() for part in back] == [gate.tolist(), up.tolist()]


def test_rope_frequencies_are_powers_of_theta(weights: Weights) -> None:
    plain = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    np.testing.assert_allclose(rope.frequencies(weights.config), plain, rtol=1e-14)
    scaled = dataclasses.replace(weights.config, rope_divisors=(4.0,))
    np.testing.assert_allclose(rope.frequencies(scaled), plain / 4, rtol=1e-14)
