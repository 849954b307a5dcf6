"""What the engine may ask of a model, whatever computes it.

`Runner` is implemented by `cpu` and `cuda` (row-exact kernels) and `eager` (torch, the weaker
class).
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, runtime_checkable

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
    def row_exact(self) -> bool:
        """A position's bits depend on the tokens before it alone, not on the batch it ran in."""

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


@runtime_checkable
class DeviceKv(Protocol):
    """A KV pool on a device whose copies to and from the host are only begun by these calls.

    They are done before the next pass computes, and for the host after `settle` or a whole pass.
    """

    def host(self, slots: int, /) -> npt.NDArray[np.uint8]:
        """Once, before the first copy: [slots, block_bytes] of memory that copies go to."""

    def stash(self, block: int, slot: int, /) -> None: ...
    def fetch(self, slot: int, block: int, /) -> None: ...
    def copy(self, source: int, target: int, /) -> None: ...
    def settle(self) -> None: ...
