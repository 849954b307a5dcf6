"""What one session takes of one node, in the numbers that ledgers add up."""

from dataclasses import dataclass
from typing import Final

WHOLE: Final = 1_000_000
"""A whole GPU's time in parts; a millionth is finer than any share in thousandths."""


@dataclass(frozen=True, slots=True)
class Take:
    """`gpus` holds for each GPU its index on the node, the slices, and the parts of its time."""

    node: str
    gpus: tuple[tuple[int, int, int], ...]
    cpu_milli: int
    memory_bytes: int
