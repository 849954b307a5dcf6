"""Measures decode over batches and context lengths, and prompts, of a model that is open.

Each sequence has full blocks of KV of its own, and prompts come in the chunks that sessions compute
them in. What follows from the figures is not decided here.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from sojourn_runtime.keeper import Policy
from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.protocol import Interrupted, Logits, Runner, Segment

CHUNK: Final = Policy().chunk
"""Tokens of a prompt per pass, as sessions compute them unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What to measure."""

    batches: Sequence[int]
    contexts: Sequence[int]
    prompts: Sequence[int]
    tokens: int
    rounds: int

    @property
    def sequence_blocks(self) -> int:
        longest = max(*self.contexts, *self.prompts) + 1 + self.tokens
        return -(-longest // BLOCK_TOKENS)

    def cells(self, blocks: int) -> Iterator[tuple[int, int]]:
        """Batch and context of those that fit into so many blocks."""
        for batch in self.batches:
            for context in self.contexts:
                if batch * self.blocks(context) <= blocks:
                    yield batch, context

    def blocks(self, context: int) -> int:
        return -(-(context + 1 + self.tokens) // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens/s: of decode by batch and context, of prompts by their length."""

    decode: Mapping[tuple[int, int], float]
    prefill: Mapping[int, float]


def measure(runner: Runner, sizes: Sizes) -> Measured:
    """The best of some rounds: other work on the machine only ever slows down."""
    prefill: dict[int, float] = {}
    decode: dict[tuple[int, int], float] = {}
    for _ in range(sizes.rounds):
        for length in sizes.prompts:
            rate = length / _prefill(runner, length)
            prefill[length] = max(rate, prefill.get(length, 0.0))
        _fill(runner, sizes)
        for batch, context in sizes.cells(len(runner.kv)):
            rate = batch / _step(runner, batch, context, sizes)
            decode[batch, context] = max(rate, decode.get((batch, context), 0.0))
    return Measured(decode, prefill)


def _prefill(runner: Runner, length: int) -> float:
    """Seconds for one prompt, the first token chosen."""
    ids = np.random.default_rng(length).integers(0, runner.config.vocab_size, length, np.int32)
    blocks = range(-(-length // BLOCK_TOKENS))
    begin = time.perf_counter()
    for start in range(0, length, CHUNK):
        part = ids[start : start + CHUNK]
        last = start + len(part) == length
        _forward(runner, [Segment(part, start, blocks, "last" if last else "none")])
    return time.perf_counter() - begin


def _fill(runner: Runner, sizes: Sizes) -> None:
    """Real KV in all blocks: memory that nobody wrote is one page, and so always in the cache."""
    _prefill(runner, max(*sizes.contexts, *sizes.prompts))
    for block in range(sizes.sequence_blocks, len(runner.kv)):
        runner.kv[block] = runner.kv[block % sizes.sequence_blocks]


def _step(runner: Runner, batch: int, context: int, sizes: Sizes) -> float:
    """Seconds of the median step, each from the tokens of the one before."""
    each = sizes.blocks(context)
    tables = [range(n * each, (n + 1) * each) for n in range(batch)]
    chosen, times = [0] * batch, []
    for position in range(context, context + 1 + sizes.tokens):
        begin = time.perf_counter()
        step = [Segment([t], position, b) for t, b in zip(chosen, tables, strict=True)]
        chosen = _forward(runner, step).argmax(-1).tolist()
        times.append(time.perf_counter() - begin)
    return median(times[1:])


def _forward(runner: Runner, segments: Sequence[Segment]) -> Logits:
    logits = runner.forward(segments)
    if isinstance(logits, Interrupted):
        raise TypeError("nobody asked the pass to stop")
    return logits
