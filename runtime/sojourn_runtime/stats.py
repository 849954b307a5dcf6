"""Counters and latency windows of a session, for its status and metrics.

Written by the engine's thread, read by the server's: plain numbers and bounded deques, no locks.
"""

import math
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

WINDOW = 512
"""Latencies kept: the p95 then rests on the last 25 slowest, over some seconds of decode."""


@dataclass(slots=True)
class Stats:
    """What happened so far."""

    steps: int = 0
    step_seconds: float = 0.0
    tokens: int = 0
    """Tokens computed, of prompts and outputs."""
    generated: int = 0
    ttft: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    itl: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    startup: dict[str, float] = field(default_factory=dict)
    """Milliseconds from the process's begin to: listening, loaded, serving."""

    def reached(self, what: str) -> None:
        self.startup[what] = round(process_age() * 1000)

    def step(self, *, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.step_seconds += seconds
        self.tokens += tokens

    def first_token(self, seconds: float) -> None:
        self.generated += 1
        self.ttft.append(seconds)

    def next_token(self, seconds: float) -> None:
        self.generated += 1
        self.itl.append(seconds)

    def latency(self) -> dict[str, float | int | None]:
        """As the status has it; null where nothing was measured yet."""
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
