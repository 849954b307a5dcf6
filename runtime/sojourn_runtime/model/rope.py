"""Rotary frequencies, computed in decimals: the same on every machine, whatever its libm."""

from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import ModelConfig


def frequencies(config: ModelConfig) -> npt.NDArray[np.float64]:
    """Radians per position of each rotated pair: theta ^ (-2i / head_dim), divided if scaled."""
    with localcontext() as context:
        context.prec = 30
        log = Decimal(config.rope_theta).ln()
        size = config.head_dim
        plain = np.array([float((-2 * i * log / size).exp()) for i in range(size // 2)])
    divided: npt.NDArray[np.float64] = plain / np.array(config.rope_divisors or (1.0,))
    return divided
