"""How far the distributions of one set of weights are from those of another, on a text.

Teacher-forced: every position sees the text itself, so that one early difference is not counted
again and again, as it would be in generated texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import Interrupted, Logits, Segment
from sojourn_runtime.model.weights import Weights

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quality:
    """`kl`: mean divergence from the reference in nats; `top1`: how often both find the same
    token likeliest; `perplexity`: of the text itself.
    """

    tokens: int
    kl: float
    top1: float
    perplexity: float


def logits_of(
    weights: Weights, tokens: Sequence[int], *, threads: int, pairs: bool = False
) -> Logits:
    """The logits after every token of the text."""
    blocks = range(-(-len(tokens) // BLOCK_TOKENS))
    runner = CpuRunner(weights, num_blocks=len(blocks), threads=threads, pairs=pairs)
    try:
        logits = runner.forward([Segment(tokens, 0, blocks, "all")])
    finally:
        runner.close()
    if isinstance(logits, Interrupted):
        raise TypeError("nobody asked the pass to stop")
    return logits


def quality(logits: Logits, reference: Logits, tokens: Sequence[int]) -> Quality:
    losses = [-log_softmax(row)[token] for row, token in zip(logits, tokens[1:], strict=False)]
    return Quality(
        tokens=len(tokens),
        kl=float(divergence(logits, reference).mean()),
        top1=float((logits.argmax(-1) == reference.argmax(-1)).mean()),
        perplexity=float(np.exp(np.mean(losses))),
    )


def divergence(logits: Logits, reference: Logits) -> Doubles:
    """Of each row, the Kullback-Leibler divergence of the reference's distribution from its own.

    By the differences of the logits, centred: subtracting two logarithms would lose the small
    values that single linears have.
    """
    found = []
    for row, known in zip(logits, reference, strict=True):  # one at a time: doubles are large
        likely = np.exp(log_softmax(known))
        apart = row.astype(np.float64) - known
        apart -= likely @ apart
        found.append(np.log(likely @ np.exp(apart)))
    return np.array(found)


def log_softmax(row: npt.NDArray[np.float32]) -> Doubles:
    wide = row.astype(np.float64) - row.max()
    below: Doubles = wide - np.log(np.exp(wide).sum())
    return below
