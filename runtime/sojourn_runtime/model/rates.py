"""How fast a device decodes behind long contexts: the rate model that `bench` fits, and a model's
share of decode that follows.

Pure: `bench` measures. Rates are tokens/s of the whole batch, lengths are tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from sojourn_api.gpus import REFERENCE_TBPS, REFERENCE_TFLOPS, speed_of

Doubles = npt.NDArray[np.float64]

LEAST_POINTS: Final = 4
"""As many as the model has parameters."""
EXPONENTS: Final = (0.25, 3.0)
"""Reading the KV is linear in the length, so that others than 1 tell of caches and overheads."""
ZOOMS: Final = 16


@dataclass(frozen=True, slots=True)
class RateModel:
    """`rate / (1 + slope * max(0, length - knee) ** exponent)`: flat up to the knee, where
    reading the weights hides that of the KV.
    """

    rate: float
    slope: float
    knee: float
    exponent: float

    def at(self, length: float) -> float:
        beyond = max(0.0, length - self.knee)
        rise: float = beyond**self.exponent  # no exponent that is fitted is 0
        return self.rate / (1 + self.slope * rise)


def fit(lengths: Sequence[float], rates: Sequence[float]) -> RateModel:
    """The model with the least squares of relative errors; raises ValueError for too few points.

    For a given knee and exponent the time per token is linear in the other two, so only those two
    are searched: on a grid, then closer and closer around the best.
    """
    if len(set(lengths)) < LEAST_POINTS:
        raise ValueError(f"{len(set(lengths))} lengths: the model needs {LEAST_POINTS} at least")
    x, y = np.array(lengths, float), np.array(rates, float)
    low, high = 0.0, float(np.sort(x)[-2])
    least, most = EXPONENTS
    knees, exponents = np.linspace(low, high, 33), np.linspace(least, most, 23)
    for _ in range(ZOOMS):
        _, knee, exponent = min(
            (_solve(x, y, k, b)[0], float(k), float(b)) for k in knees for b in exponents
        )
        # Twice the way to the next: the best of a narrow valley may lie beyond it.
        reach_k, reach_b = 2 * (knees[1] - knees[0]), 2 * (exponents[1] - exponents[0])
        knees = np.linspace(max(low, knee - reach_k), min(high, knee + reach_k), 9)
        exponents = np.linspace(max(least, exponent - reach_b), min(most, exponent + reach_b), 9)
    _, flat, rise = _solve(x, y, knee, exponent)
    return RateModel(rate=1 / flat, slope=rise / flat, knee=knee, exponent=exponent)


def _solve(x: Doubles, y: Doubles, knee: float, exponent: float) -> tuple[float, float, float]:
    """Sum of squared relative errors, seconds per token up to the knee, and their rise beyond."""
    ones, rises = y, y * np.maximum(0, x - knee) ** exponent
    oo, rr, cross = ones @ ones, rises @ rises, ones @ rises
    determinant = oo * rr - cross**2
    rise = (oo * rises.sum() - cross * ones.sum()) / determinant if determinant > 0 else 0.0
    rise = max(0.0, rise)
    flat = (ones.sum() - rise * cross) / oo
    if flat <= 0:
        return float("inf"), float("nan"), float("nan")
    errors = ones * flat + rises * rise - 1
    return float(errors @ errors), float(flat), float(rise)


def decode_fraction(*, decode_s: float, prefill_s: float, device: str) -> int:
    """The share of decode in a model's time in thousandths, as `LLMModel.spec.decodeFraction` has
    it: on the reference GPU, if the speeds of `device` are known, else on the device itself.
    """
    speed = speed_of(device)
    if speed:
        decode_s *= speed.tbps / REFERENCE_TBPS
        prefill_s *= speed.tflops / REFERENCE_TFLOPS
    return round(1000 * decode_s / (decode_s + prefill_s))
