"""What one engine measures in one round, and how a peer in a process of its own is asked for it.

A peer opens its model once and then waits for a line on standard input before each round, so that
rounds of all engines alternate and none pays for another's start.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

BATCHES: Final = (1, 8, 32)
CONTEXT: Final = 256
PROMPTS: Final = (512, 2048)


@dataclass(frozen=True, slots=True)
class Run:
    """Greedy decode of one batch behind `CONTEXT` tokens, in seconds: of each step, and of the
    prompts before them.
    """

    step_s: Sequence[float]
    prefill_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """By batch, and by the length of a single prompt (seconds until its first token)."""

    batches: Mapping[int, Run]
    prompts: Mapping[int, float]


def prompts_of(batch: int, tokens: int, *, vocabulary: int) -> npt.NDArray[np.int64]:
    """The same for every engine."""
    return np.random.default_rng(0).integers(0, vocabulary, (batch, tokens))


class Timed(Protocol):
    """How a peer generates greedily: `batch` prompts of `length` tokens, `new` ones for each."""

    def __call__(self, batch: int, length: int, new: int) -> Sequence[float]:
        """When the prompts were given, and when each token of all of them had come, in seconds."""


def answer_rounds(times: Timed, *, tokens: int) -> None:
    """A peer's loop: says that it is ready, then one round for each line asked."""

    def decode(batch: int) -> Run:
        times(batch, CONTEXT, 2)
        begin, *came = times(batch, CONTEXT, 1 + tokens)
        steps = [after - before for before, after in itertools.pairwise(came)]
        return Run(step_s=steps, prefill_s=came[0] - begin)

    def prefill(length: int) -> float:
        begin, first = times(1, length, 1)
        return first - begin

    answer = sys.stdout
    sys.stdout = sys.stderr  # libraries print as they like
    print(json.dumps({"ready": True}), file=answer, flush=True)
    for _ in sys.stdin:
        found = Round(
            batches={batch: decode(batch) for batch in BATCHES},
            prompts={length: prefill(length) for length in PROMPTS},
        )
        print(json.dumps(asdict(found)), file=answer, flush=True)


class Peer:
    """A peer's process; it ends with the `with` block."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._name = command[1]

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def round(self) -> Round:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = self._answer()
        return Round(
            batches={int(batch): Run(**run) for batch, run in found["batches"].items()},
            prompts={int(length): float(s) for length, s in found["prompts"].items()},
        )

    def _answer(self) -> dict[str, Any]:
        """The next line of JSON; a peer that ended says why on standard error."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        raise SystemExit(f"{self._name} ended with exit code {self._process.wait()}")
