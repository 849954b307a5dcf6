"""Counters and latency windows of a session, for its status and metrics.

Written by the engine's thread, read by the server's: plain numbers and bounded deques, no locks.
"""

import math
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

AGE_SECONDS = 600.0
"""Without a request for so long, what was measured before says nothing of now. A guess."""
WINDOW = 512
"""Latencies kept: the p95 then rests on the last 25 slowest, over some seconds of decode."""


HAND_OVER: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Seconds: upper bounds of the buckets, around the millisecond that 32 requests take."""


@dataclass(slots=True)
class Stats:
    """What happened so far."""

    steps: int = 0
    step_seconds: float = 0.0
    given: int = 0
    """Tokens handed to the model, also those of passes that were stopped and begun again."""
    tokens: int = 0
    """Tokens computed, of prompts and outputs."""
    handed_over: list[int] = field(default_factory=lambda: [0] * (len(HAND_OVER) + 1))
    """Steps by what was between scheduler and model beside the pass: planning, moves, sampling,
    journal, telling; the last number is of those above all bounds.
    """
    hand_over_seconds: float = 0.0
    generated: int = 0
    ttft: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    itl: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    told_at: float = 0.0
    """When the last latency was measured, on the monotonic clock."""
    startup: dict[str, float] = field(default_factory=dict)
    """Milliseconds from the process's begin to: listening, loaded, serving."""
    clock: Callable[[], float] = time.monotonic

    def reached(self, what: str) -> None:
        self.startup[what] = round(process_age() * 1000)

    def step(self, *, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.step_seconds += seconds
        self.tokens += tokens

    def hand_over(self, seconds: float) -> None:
        self.handed_over[bisect_left(HAND_OVER, seconds)] += 1
        self.hand_over_seconds += seconds

    def effective(self, *, recomputed: int) -> float:
        """The share of the tokens handed to the model that had to be computed."""
        return (self.tokens - recomputed) / self.given if self.given else 1.0

    def first_token(self, seconds: float) -> None:
        self.generated += 1
        self._age()
        self.ttft.append(seconds)

    def next_token(self, seconds: float) -> None:
        self.generated += 1
        self._age()
        self.itl.append(seconds)

    def _age(self) -> None:
        if self._aged:
            self.ttft.clear()
            self.itl.clear()
        self.told_at = self.clock()

    @property
    def _aged(self) -> bool:
        return self.clock() - self.told_at > AGE_SECONDS

    def latency(self) -> dict[str, float | int | None]:
        """As the status has it; null where nothing was measured, or not for long."""
        if self._aged:
            return {"ttftP95Ms": None, "itlP95Ms": None, "window": 0}
        return {
            "ttftP95Ms": p95(tuple(self.ttft)),
            "itlP95Ms": p95(tuple(self.itl)),
            "window": len(self.itl),
        }


def process_age() -> float:
    """Seconds since the kernel started this process, to its clock's 10 ms (proc(5), starttime)."""
    after_name = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def p95(seconds: Iterable[float]) -> float | None:
    """The nearest-rank 95th percentile in milliseconds, or None of nothing."""
    values = sorted(seconds)
    if not values:
        return None
    return round(values[math.ceil(0.95 * len(values)) - 1] * 1000, 3)
