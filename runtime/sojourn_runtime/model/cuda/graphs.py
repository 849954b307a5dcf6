"""Decode steps as recorded CUDA graphs, one for each batch size and length that is worth one.

A batch is filled up to the next size with sequences of their own, in a block that nobody else
has; row-exact kernels make that, and splits that compute nothing, invisible in every bit.
Without CUDA the same step runs unrecorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sojourn_runtime.model.cuda import ops
from sojourn_runtime.model.cuda.attention import BLOCKS_PER_SPLIT, SPLIT_TOKENS
from sojourn_runtime.model.cuda.inputs import Inputs, gather
from sojourn_runtime.model.cuda.network import Network
from sojourn_runtime.model.cuda.ops import Given
from sojourn_runtime.model.protocol import Segment

SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(slots=True)
class Recorded:
    """A step with its fixed places. The memory between them is shared: one step at a time."""

    buffer: torch.Tensor
    logits: torch.Tensor
    graph: torch.cuda.CUDAGraph


def recordable(segments: Sequence[Segment]) -> bool:
    """One token of each sequence, and its logits wanted."""
    return len(segments) <= SIZES[-1] and all(
        len(segment.tokens) == 1 and segment.logits != "none" for segment in segments
    )


class Steps:
    """Decode steps by size and length; the first of a kind is recorded, which takes a moment."""

    def __init__(self, network: Network, *, num_blocks: int, device: torch.device) -> None:
        """Block `num_blocks`, one behind the pool, takes what fills up a batch."""
        self._network = network
        self._spare = num_blocks
        self._device = device
        self._recorded: dict[tuple[int, int], Recorded] = {}
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Logits of the segments, on the device; they stay until the next call."""
        size = next(size for size in SIZES if size >= len(segments))
        filling = [Segment([0], 0, [self._spare])] * (size - len(segments))
        longest = max(segment.start for segment in segments)
        splits = 1 << (longest // SPLIT_TOKENS).bit_length()
        inputs = self._gather([*segments, *filling], room=size * splits * BLOCKS_PER_SPLIT)
        buffer = pinned(inputs, self._device)
        if self._device.type != "cuda":
            given = Given.of(inputs, buffer, splits=splits)
            return self._network.whole(given)[: len(segments)]
        step = self._recorded.get((size, splits))
        if step is None:
            step = self._recorded[size, splits] = self._record(inputs, splits)
        step.buffer.copy_(buffer, non_blocking=True)
        step.graph.replay()
        return step.logits[: len(segments)]

    def clear(self) -> None:
        self._recorded.clear()

    def _gather(self, segments: Sequence[Segment], *, room: int) -> Inputs:
        config = self._network.config
        return gather(
            segments,
            config,
            self._spare + 1,
            tile_rows=ops.tile_rows(config),
            split_tokens=SPLIT_TOKENS,
            group_rows=ops.group_rows(config),
            room=room,
        )

    def _record(self, inputs: Inputs, splits: int) -> Recorded:
        buffer = pinned(inputs, self._device).to(self._device)
        given = Given.of(inputs, buffer, splits=splits)
        self._network.whole(given)  # compiles the kernels, which must not happen while recording
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits = self._network.whole(given)
        return Recorded(buffer, logits, graph)


def pinned(inputs: Inputs, device: torch.device) -> torch.Tensor:
    """The buffer where the device can fetch it while we go on."""
    buffer = torch.from_numpy(inputs.buffer)
    return buffer.pin_memory() if device.type == "cuda" else buffer
