"""Whether a runner's rows are exact on the device at hand: tried, not believed.

Compilers and GPUs differ; a pass that is wrong about itself would make `exact` a lie.
"""

from collections.abc import Sequence

import numpy as np

from sojourn_runtime.model.protocol import Interrupted, Logits, Runner, Segment

BLOCKS_TRIED = 4
LENGTH = 97
"""Tokens: two blocks, and off every grid."""


def steady(runner: Runner, blocks: Sequence[int]) -> bool:
    """One pass, chunks, and decode alone and in company give equal logits and KV; overwrites
    the first four of `blocks`.
    """
    random = np.random.default_rng(0)
    tokens = random.integers(0, runner.config.vocab_size, LENGTH).astype(np.int32)
    one, other = blocks[:2], blocks[2:4]
    whole = _forward(runner, Segment(tokens, 0, one, "all"))
    full = runner.kv[one[0]].tobytes()
    cut = 33
    chunks = [_forward(runner, Segment(tokens[:cut], 0, other, "all"))]
    chunks.append(_forward(runner, Segment(tokens[cut:-1], cut, other, "all")))
    last = Segment(tokens[-1:], LENGTH - 1, other)
    alone = _forward(runner, last)
    company = _forward(runner, last, Segment(tokens[:1], 0, one))
    return (
        np.concatenate([*chunks, alone]).tobytes() == whole.tobytes()
        and company[:1].tobytes() == alone.tobytes()
        and company[1:].tobytes() == whole[:1].tobytes()
        and runner.kv[other[0]].tobytes() == full
    )


def _forward(runner: Runner, *segments: Segment) -> Logits:
    logits = runner.forward(segments)
    if isinstance(logits, Interrupted):  # nobody asked for it
        raise TypeError("a pass without a stop flag was interrupted")
    return logits
