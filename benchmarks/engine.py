"""Decode and prefill speed of the CPU kernels, beside transformers on the same weights, machine
and threads.

Rounds of both alternate, and the one with the best median step counts, because shared machines
only ever slow a run down. Also how close the distributions are (teacher-forced), and how long
opening the model takes. A table, and JSON with `--out`.
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.runner import usable_cpus
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights

BATCHES = (1, 8)
CONTEXT = 256
PEER = Path(__file__).with_name("engine_peer.py")
TEXT = (
    "Photosynthesis is the process by which green plants turn light into chemical energy. It takes "
    "place in the chloroplasts, where chlorophyll absorbs red and blue light and reflects green. "
    "Water is split into oxygen, which leaves the plant through its leaves, and hydrogen, which is "
    "used to build sugar from carbon dioxide. The first stage needs light; the second, named after "
    "Melvin Calvin, does not, and runs as long as the first has left enough energy behind."
)


@dataclass(frozen=True, slots=True)
class Speed:
    """One engine at one batch size; the best of all rounds."""

    engine: str
    batch: int
    context: int
    step_ms: float
    tokens_per_second: float
    prefill_tokens_per_second: float


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def forward(runner: CpuRunner, segments: Sequence[Segment]) -> npt.NDArray[np.float32]:
    logits = runner.forward(segments)
    assert not isinstance(logits, Interrupted)
    return logits


@dataclass(frozen=True, slots=True)
class Run:
    """One engine once at one batch size, in seconds."""

    step_s: Sequence[float]
    prefill_s: float


def decode(
    weights: Weights, batch: int, *, threads: int, tokens: int, clock: Callable[[], float]
) -> Run:
    """Greedy, every step from the tokens of the one before."""
    each = -(-(CONTEXT + tokens + 1) // BLOCK_TOKENS)
    tables = [range(n * each, (n + 1) * each) for n in range(batch)]
    ids = np.random.default_rng(0).integers(0, weights.config.vocab_size, (batch, CONTEXT))
    prompts = [Segment(row, 0, table) for row, table in zip(ids, tables, strict=True)]
    runner = CpuRunner(weights, num_blocks=batch * each, threads=threads)
    forward(runner, prompts)
    times = [clock()]
    chosen = forward(runner, prompts).argmax(-1)
    times.append(clock())
    for position in range(CONTEXT, CONTEXT + tokens):
        step = [Segment([t], position, b) for t, b in zip(chosen, tables, strict=True)]
        chosen = forward(runner, step).argmax(-1)
        times.append(clock())
    runner.close()
    first, *steps = (after - before for before, after in itertools.pairwise(times))
    return Run(step_s=steps, prefill_s=first)


def theirs(command: Sequence[str], environment: dict[str, str]) -> dict[int, Run]:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line.pop("batch"): Run(**line) for line in lines}


def best(engine: str, rounds: Sequence[dict[int, Run]]) -> list[Speed]:
    found = []
    for batch in BATCHES:
        step = min(median(each[batch].step_s) for each in rounds)
        prefill = min(each[batch].prefill_s for each in rounds)
        found.append(
            Speed(
                engine=engine,
                batch=batch,
                context=CONTEXT,
                step_ms=round(step * 1e3, 2),
                tokens_per_second=round(batch / step, 1),
                prefill_tokens_per_second=round(batch * CONTEXT / prefill),
            )
        )
    return found


def closeness(
    weights: Weights, ids: Sequence[int], other: npt.NDArray[np.float32]
) -> dict[str, Any]:
    """Mean KL of the peer's distributions from ours, and how often the likeliest token is one."""
    blocks = range(-(-len(ids) // 64))
    runner = CpuRunner(weights, num_blocks=len(blocks), threads=1)
    mine = forward(runner, [Segment(ids, 0, blocks, "all")])
    first, second = (x - x.max(-1, keepdims=True) for x in (mine, other))
    first, second = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (first, second))
    divergence = (np.exp(first) * (first - second)).sum(-1)
    agreement = (mine.argmax(-1) == other.argmax(-1)).mean()
    return {
        "tokens": len(ids),
        "mean_kl": round(float(divergence.mean()), 5),
        "top1_agreement": round(float(agreement), 4),
    }


def opening(model: Path) -> dict[str, float]:
    """Seconds to open the model without and with a converted file in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds(lambda: open_weights(str(model), cache_dir=Path(folder)))
        warm = min(
            seconds(lambda: open_weights(str(model), cache_dir=Path(folder))) for _ in range(5)
        )
    return {"cold_s": round(cold, 2), "warm_s": round(warm, 4)}


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def table(speeds: Sequence[Speed]) -> str:
    rows = [("engine", "batch", "context", "ms/step", "decode tok/s", "prefill tok/s")]
    rows += [tuple(str(value) for value in asdict(speed).values()) for speed in speeds]  # type: ignore[misc]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(v.rjust(w) for v, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    cache = Path(os.environ.get("SOJOURN_CACHE", Path.home() / ".cache" / "sojourn"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=cache / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    parser.add_argument("--cache", type=Path, default=cache / "weights-cache")
    parser.add_argument(
        "--peer-path", default="", help="folders with torch and transformers; empty: no peer"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="decoded per round and sequence")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument(
        "--cpu-clock",
        action="store_true",
        help="one thread, and its processor time: comparable on a busy machine",
    )
    parser.add_argument("--out", type=Path, help="where to write JSON")
    given = parser.parse_args()
    clock = time.thread_time if given.cpu_clock else time.perf_counter
    if given.cpu_clock:
        given.threads = 1
    weights = open_weights(str(given.model), cache_dir=given.cache)
    ids = Tokenizer(weights).encode(TEXT)
    report: dict[str, Any] = {
        "commit": commit(),
        "processor": processor(),
        "threads": given.threads,
        "clock": "processor time" if given.cpu_clock else "wall",
        "load_before": round(os.getloadavg()[0], 1),
        "opening": opening(given.model),
    }
    mine, peers = [], []
    with tempfile.TemporaryDirectory() as folder:
        logits = Path(folder) / "logits.npy"
        command = [sys.executable, str(PEER), str(given.model), str(given.cache)]
        command += ["--batches", *map(str, BATCHES), "--context", str(CONTEXT)]
        command += ["--tokens", str(given.tokens), "--threads", str(given.threads)]
        command += ["--cpu-clock"] * given.cpu_clock
        command += ["--logits", str(logits), "--ids", *map(str, ids)]
        path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), given.peer_path])
        for _ in range(given.rounds):
            mine.append(
                {
                    batch: decode(
                        weights, batch, threads=given.threads, tokens=given.tokens, clock=clock
                    )
                    for batch in BATCHES
                }
            )
            if given.peer_path:
                peers.append(theirs(command, {**os.environ, "PYTHONPATH": path}))
        if peers:
            report["closeness"] = closeness(weights, ids, np.load(logits))
    speeds = best("sojourn", mine) + (best("transformers", peers) if peers else [])
    report["speeds"] = [asdict(speed) for speed in speeds]
    print(table(speeds))
    print(json.dumps({key: value for key, value in report.items() if key != "speeds"}))
    if given.out:
        given.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
