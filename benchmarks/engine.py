"""Decode and prefill speed of the CPU kernels in each kernel class, beside transformers and vLLM on
the same weights, machine and threads.

Rounds of all alternate, and the one with the best median step counts, because shared machines
only ever slow a run down. Also how close the distributions are (teacher-forced), and how long
opening the model takes. A table, and JSON with `--out`.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from engine_round import BATCHES, CONTEXT, PROMPTS, Peer, Round, Run, prompts_of
from jsonfile import save
from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.quality import logits_of, quality
from sojourn_runtime.model.quantization import Kind, read_plan
from sojourn_runtime.model.runner import usable_cpus
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights
from where import commit, processor

HERE = Path(__file__).parent
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
class Ours:
    """One of our kernel classes; `pairs`: that of `--device cpu-amx`."""

    weights: Weights
    threads: int
    pairs: bool = False

    def runner(self, num_blocks: int) -> CpuRunner:
        return CpuRunner(
            self.weights, num_blocks=num_blocks, threads=self.threads, pairs=self.pairs
        )


def decode(ours: Ours, batch: int, *, tokens: int, clock: Callable[[], float]) -> Run:
    """Greedy, every step from the tokens of the one before."""
    each = -(-(CONTEXT + tokens + 1) // BLOCK_TOKENS)
    tables = [range(n * each, (n + 1) * each) for n in range(batch)]
    ids = prompts_of(batch, CONTEXT, vocabulary=ours.weights.config.vocab_size)
    prompts = [Segment(row, 0, table) for row, table in zip(ids, tables, strict=True)]
    runner = ours.runner(batch * each)
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


def prefill(ours: Ours, length: int, *, clock: Callable[[], float]) -> float:
    """Seconds for one prompt in one piece."""
    blocks = range(-(-length // BLOCK_TOKENS))
    prompt = prompts_of(1, length, vocabulary=ours.weights.config.vocab_size)[0]
    runner = ours.runner(len(blocks))
    forward(runner, [Segment(prompt[:BLOCK_TOKENS], 0, blocks)])
    begin = clock()
    forward(runner, [Segment(prompt, 0, blocks)])
    took = clock() - begin
    runner.close()
    return took


def measured(ours: Ours, *, tokens: int, clock: Callable[[], float]) -> Round:
    return Round(
        batches={batch: decode(ours, batch, tokens=tokens, clock=clock) for batch in BATCHES},
        prompts={length: prefill(ours, length, clock=clock) for length in PROMPTS},
    )


def best(engine: str, rounds: Sequence[Round]) -> list[Speed]:
    found = []
    for batch in BATCHES:
        step = min(median(each.batches[batch].step_s) for each in rounds)
        prompts = min(each.batches[batch].prefill_s for each in rounds)
        found.append(
            Speed(
                engine=engine,
                batch=batch,
                context=CONTEXT,
                step_ms=round(step * 1e3, 2),
                tokens_per_second=round(batch / step, 1),
                prefill_tokens_per_second=round(batch * CONTEXT / prompts),
            )
        )
    return found


def prefills(rounds: Sequence[Round]) -> dict[int, int]:
    """Tokens/s of a single prompt, by its length."""
    return {
        length: round(length / min(each.prompts[length] for each in rounds)) for length in PROMPTS
    }


def qualities(
    opened: Mapping[str, Ours], ids: Sequence[int], peer: Path | None
) -> dict[str, dict[str, float]]:
    """Of each class, and of the peer, against our own bf16."""
    logits = {
        name: logits_of(each.weights, ids, threads=1, pairs=each.pairs)
        for name, each in opened.items()
    }
    if peer:
        logits["transformers"] = np.load(peer)
    found = {name: quality(each, logits[Kind.BF16], ids) for name, each in logits.items()}
    return {
        name: {key: round(value, 5) for key, value in asdict(each).items()}
        for name, each in found.items()
    }


def faster(speeds: Sequence[Speed], *, than: str) -> dict[str, dict[int, float]]:
    """How many times the decode speed of that engine, by engine and batch."""
    plain = {each.batch: each.tokens_per_second for each in speeds if each.engine == than}
    ratios: dict[str, dict[int, float]] = {}
    for each in speeds:
        ratio = round(each.tokens_per_second / plain[each.batch], 2)
        ratios.setdefault(each.engine, {})[each.batch] = ratio
    return ratios


def faster_prefill(
    found: Mapping[str, Mapping[int, int]], *, than: str
) -> dict[str, dict[int, float]]:
    return {
        name: {length: round(speed / found[than][length], 2) for length, speed in each.items()}
        for name, each in found.items()
    }


def peers_of(given: argparse.Namespace, logits: Path, ids: Sequence[int]) -> dict[str, Peer]:
    """Those whose folders were given, by name."""
    common = [str(given.model), str(given.cache)]
    common += ["--tokens", str(given.tokens), "--threads", str(given.threads)]
    mine = ["--logits", str(logits), *["--cpu-clock"] * given.cpu_clock, "--ids", *map(str, ids)]

    def peer(name: str, folders: str, extra: Sequence[str] = ()) -> Peer:
        path = os.pathsep.join([folders, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, str(HERE / f"engine_{name}.py"), *common, *extra]
        return Peer(command, {**os.environ, "PYTHONPATH": path})

    found = {}
    if given.peer_path:
        found["transformers"] = peer("transformers", given.peer_path, mine)
    if given.vllm:
        found["vllm"] = peer("vllm", given.vllm)
    return found


def opening(model: Path) -> dict[str, float]:
    """Seconds to open the model without and with a converted file in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds(lambda: open_weights(str(model), cache_dir=Path(folder)))
        warm = min(
            seconds(lambda: open_weights(str(model), cache_dir=Path(folder))) for _ in range(5)
        )
    return {"cold_s": round(cold, 2), "warm_s": round(warm, 4)}


def table(speeds: Sequence[Speed]) -> str:
    rows = [("engine", "batch", "context", "ms/step", "decode tok/s", "prefill tok/s")]
    rows += [tuple(str(value) for value in asdict(speed).values()) for speed in speeds]  # type: ignore[misc]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(v.rjust(w) for v, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def alternate(
    given: argparse.Namespace,
    opened: Mapping[str, Ours],
    peers: Mapping[str, Peer],
    *,
    clock: Callable[[], float],
) -> dict[str, list[Round]]:
    """The rounds of all, in turn."""
    rounds: dict[str, list[Round]] = {}
    with ExitStack() as stack:
        for peer in peers.values():
            stack.enter_context(peer)
        for _ in range(given.rounds):
            for name, each in opened.items():
                found = measured(each, tokens=given.tokens, clock=clock)
                rounds.setdefault(name, []).append(found)
            for name, peer in peers.items():
                rounds.setdefault(name, []).append(peer.round())
    return rounds


def parser_of() -> argparse.ArgumentParser:
    cache = Path(os.environ.get("SOJOURN_CACHE", Path.home() / ".cache" / "sojourn"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=cache / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    parser.add_argument("--cache", type=Path, default=cache / "weights-cache")
    parser.add_argument(
        "--peer-path", default="", help="folders with torch and transformers; empty: no peer"
    )
    parser.add_argument(
        "--vllm", default="", help="folders with vLLM's CPU build and torch; empty: no such peer"
    )
    parser.add_argument(
        "--quantization", nargs="+", default=[*Kind], help="kinds or plans, beside bf16"
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
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser


def main() -> None:
    parser = parser_of()
    given = parser.parse_args()
    if given.device == "cuda":
        import engine_cuda  # noqa: PLC0415 - imports torch

        engine_cuda.measure(given.out)
        return
    clock = time.thread_time if given.cpu_clock else time.perf_counter
    if given.cpu_clock:
        given.threads = 1
        if given.vllm:
            parser.error("--cpu-clock counts one thread alone, and vLLM has several")
    names = dict.fromkeys([Kind.BF16.value, *given.quantization])
    opened = {
        Path(name).stem: Ours(
            open_weights(str(given.model), cache_dir=given.cache, plan=read_plan(name)),
            given.threads,
        )
        for name in names
    }
    plain = opened[Kind.BF16].weights
    opened["bf16 cpu-amx"] = Ours(plain, given.threads, pairs=True)
    ids = Tokenizer(plain).encode(TEXT)
    report: dict[str, Any] = {
        "commit": commit(),
        "processor": processor(),
        "threads": given.threads,
        "clock": "processor time" if given.cpu_clock else "wall",
        "load_before": round(os.getloadavg()[0], 1),
        "opening": opening(given.model),
    }
    with tempfile.TemporaryDirectory() as folder:
        logits = Path(folder) / "logits.npy"
        peers = peers_of(given, logits, ids)
        rounds = alternate(given, opened, peers, clock=clock)
        report["quality"] = qualities(opened, ids, logits if given.peer_path else None)
    speeds = [speed for name, each in rounds.items() for speed in best(name, each)]
    report["prefill"] = {name: prefills(each) for name, each in rounds.items()}
    for than in (Kind.BF16.value, *peers):
        report[f"times_{than}"] = faster(speeds, than=than)
        report[f"prefill_times_{than}"] = faster_prefill(report["prefill"], than=than)
    report["speeds"] = [asdict(speed) for speed in speeds]
    print(table(speeds))
    for key, value in report.items():
        if key != "speeds":
            print(f"{key}: {json.dumps(value)}")
    save(report, given.out)


if __name__ == "__main__":
    main()
