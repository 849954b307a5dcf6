"""What the engine may ask of a model, whatever computes it.

`Runner` is implemented by `cpu` (row-exact kernels) and `eager` (torch, the weaker class).
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import ModelConfig

Tokens = Sequence[int] | npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one sequence: `start` is the position of the first, `blocks` the
    sequence's block table.

    The KV of all positions before `start` must stand in the blocks. `logits`: of no token, the
    last, or all.
    """

    tokens: Tokens
    start: int
    blocks: Sequence[int]
    logits: Literal["none", "last", "all"] = "last"


class Interrupted(Enum):
    """The forward pass stopped on request: no logits, and the KV of its tokens counts as
    unwritten.
    """

    INTERRUPTED = "interrupted"


INTERRUPTED = Interrupted.INTERRUPTED


class StopFlag:
    """Asks a running forward pass to stop within four layers; set from any thread or signal
    handler.

    `poll`, if given, is called from inside the pass where the flag is read, and stops it by
    returning True.
    """

    def __init__(self, poll: Callable[[], bool] | None = None) -> None:
        self.poll = poll
        self.cell = ctypes.c_int32(0)

    def set(self) -> None:
        self.cell.value = 1

    def clear(self) -> None:
        self.cell.value = 0

    def wanted(self) -> bool:
        """Whether a pass should stop now."""
        return bool(self.cell.value) or (self.poll is not None and self.poll())


class Runner(Protocol):
    """A model with its KV pool. Not reentrant: one forward pass at a time, from any thread."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def kernel_class(self) -> str: ...
    @property
    def weights_digest(self) -> str: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def kv(self) -> npt.NDArray[np.uint8]:
        """[num_blocks, block_bytes]; blocks may be copied between runners of one kernel class.

        Read a block as `kv[block]` and replace it as `kv[block] = ...`: on a device the former
        is a read-only copy, so writing into it is an error rather than lost.
        """

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        """Write the KV of all tokens and return the wanted rows of logits, in the order of the
        segments.
        """

    def close(self) -> None:
        """Give threads and memory back."""
