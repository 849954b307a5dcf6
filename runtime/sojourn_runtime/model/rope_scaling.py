"""How a model stretches its rotary frequencies over a longer context: what each is divided by.

Pure; `hf_config` and `gguf` read the numbers, `rope` applies them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaling:
    """`divisors` as in `ModelConfig.rope_divisors`; yarn also makes attention sharper."""

    divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0


def linear(factor: float) -> Scaling:
    """All positions closer together."""
    return Scaling((factor,))


def llama3(
    theta: float, head_dim: int, *, factor: float, low: float, high: float, original: int
) -> Scaling:
    """Slow rotations are stretched and fast ones kept, by how often they turn in the `original`
    context: at most `low` times, at least `high` times, and a blend between the two.
    """
    frequencies = (theta ** (-2 * i / head_dim) for i in range(head_dim // 2))
    turns = (original * frequency / (2 * math.pi) for frequency in frequencies)
    return Scaling(_blend(((each - low) / (high - low) for each in turns), factor))


def yarn(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    original: int,
    attention_factor: float | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Scaling:
    """As `llama3`, but blended along the numbers of the pairs, between those that turn
    `beta_fast` and `beta_slow` times.
    """

    def pair(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    stretched = ((i - low) / width for i in range(head_dim // 2))
    divisors = _blend((1 - share for share in stretched), factor)
    return Scaling(divisors, attention_factor or sharpness(factor))


def sharpness(factor: float, scale: float = 1.0) -> float:
    """Yarn's own attention factor."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _blend(kept: Iterable[float], factor: float) -> tuple[float, ...]:
    """`kept`: 1 where a frequency stays, 0 where it is divided by the factor."""
    shares = (min(1.0, max(0.0, share)) for share in kept)
    # Rounded to what float32 holds: the last bits of a power may differ between machines.
    return tuple(float(f"{1 / ((1 - share) / factor + share):.7g}") for share in shares)
