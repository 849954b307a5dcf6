"""Rotary frequencies, computed in decimals: the same on every machine, whatever its libm."""

from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt


def frequencies(*, theta: float, head_dim: int) -> npt.NDArray[np.float64]:
    """Radians per position of each rotated pair: theta ^ (-2i / head_dim)."""
    with localcontext() as context:
        context.prec = 30
        log = Decimal(theta).ln()
        return np.array([float((-2 * i * log / head_dim).exp()) for i in range(head_dim // 2)])
