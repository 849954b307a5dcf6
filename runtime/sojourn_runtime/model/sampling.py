"""Chooses the next token from logits: penalties and bias here, the choice itself in the
kernels' library.

A choice is a function of (logits, parameters, seed, choice number, position, tokens so far);
nothing is remembered.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model import native

Row = npt.NDArray[np.float32]


class Params(Protocol):
    """What a request says about sampling (`engine.request.SamplingParams` has it)."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def choice(self) -> int: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> tuple[tuple[int, float], ...]: ...
    @property
    def logprobs(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The token chosen. `logprob` and `top` (id, logprob; likeliest first) are of the model,
    before any penalty.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(
    logits: Row,
    params: Params,
    *,
    position: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Choice:
    """The token at `position`. `allowed` masks the vocabulary (a grammar); at least one must be
    allowed.
    """
    adjusted = _adjust(logits, params, prompt, output, allowed)
    settings = native.SamplingStruct(
        seed=(params.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF,
        choice=params.choice,
        position=position,
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
    )
    token = int(
        native.kernels().sj_sample(native.address(adjusted), len(adjusted), ctypes.byref(settings))
    )
    if params.logprobs is None:
        return Choice(token)
    return _with_logprobs(token, logits, params.logprobs)


def _adjust(
    logits: Row,
    params: Params,
    prompt: Sequence[int],
    output: Sequence[int],
    allowed: npt.NDArray[np.bool_] | None,
) -> Row:
    """Repetition counts prompt and output, presence and frequency the output alone, as OpenAI
    and vLLM have it.
    """
    changed = np.ascontiguousarray(logits, np.float32)
    if _penalises(params) or params.logit_bias or allowed is not None:
        changed = changed.copy()
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray([*prompt, *output], np.int64))
        penalty = np.float32(params.repetition_penalty)
        values = changed[seen]
        changed[seen] = np.where(values > 0, values / penalty, values * penalty)
    if output and (params.presence_penalty or params.frequency_penalty):
        used, counts = np.unique(np.asarray(output, np.int64), return_counts=True)
        changed[used] -= np.float32(params.presence_penalty)
        changed[used] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
    for token, bias in params.logit_bias:
        changed[token] += np.float32(bias)
    if allowed is not None:
        changed[~allowed] = -np.inf
    return changed


def _penalises(params: Params) -> bool:
    return bool(
        params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
    )


def _with_logprobs(token: int, logits: Row, count: int) -> Choice:
    highest = logits.max()
    total = highest + np.log(np.exp(logits - highest, dtype=np.float64).sum())
    top: list[int] = []
    if count:
        likely = np.argpartition(-logits, min(count, len(logits) - 1))[:count]
        top = sorted(likely.tolist(), key=lambda i: (-logits[i], i))
    return Choice(
        token=token,
        logprob=float(logits[token] - total),
        top=tuple((i, float(logits[i] - total)) for i in top),
    )
