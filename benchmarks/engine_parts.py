"""The parts of the engine that must not grow with what they hold: block table, scheduler, memory,
and what saving costs.

The block table and the scheduler are timed alone, the memory is that of a whole session over a
runner that computes nothing, and the cost of checkpoints is that of the real model's decode with
and without them, in turn. Prints a table, and JSON with `--out`.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from jsonfile import save
from sojourn_runtime.engine.prefix import BLOCK, root_name
from sojourn_runtime.engine.request import Request, SamplingParams
from sojourn_runtime.engine.scheduler import Limits, Scheduler
from sojourn_runtime.model.protocol import Logits, Segment, StopFlag
from sojourn_runtime.opening import open_model
from sojourn_runtime.session import Config, Ending, Session
from sojourn_runtime.settings import parse_settings
from sojourn_runtime.worker import Model
from where import where

ROOT: Final = root_name("bench")
SIZES: Final = (1_000, 100_000, 1_000_000)
TAKES: Final = 50_000
"""Blocks in a row: a list that slows down as it is emptied from the front would show it."""
ROUNDS: Final = 7


def best(action: Callable[[], float]) -> float:
    """The least of some rounds: other work only ever adds."""
    return min(action() for _ in range(ROUNDS))


def append(blocks: int) -> float:
    """Nanoseconds to append a block to a request and to give it back, on a table of this size."""
    scheduler = Scheduler(Limits(blocks=blocks))
    asked = Request(id="one", prompt=(1,), params=SamplingParams(max_tokens=1))
    progress = scheduler.add(asked, root=ROOT, priority=0)
    scheduler.schedule()
    takes = min(TAKES, blocks - 10)

    def round_() -> float:
        begin = time.perf_counter()
        for _ in range(takes):
            scheduler.residency.grow(progress)
        while len(progress.blocks) > 1:
            scheduler.pool.release(progress.blocks.pop(), keep=False)
        return (time.perf_counter() - begin) / takes * 1e9

    return best(round_)


def scheduling(requests: int, prompt: int) -> float:
    """Microseconds per request and step of decode: plan and commit."""
    scheduler = Scheduler(Limits(blocks=200_000, slots=requests, prefill=1 << 30, decode=requests))
    for number in range(requests):
        params = SamplingParams(max_tokens=1 << 20)
        tokens = tuple(range(number * 7, number * 7 + prompt))
        scheduler.add(Request(id=f"{number}", prompt=tokens, params=params), root=ROOT, priority=0)

    def steps(count: int) -> None:
        for _ in range(count):
            for work in scheduler.schedule().work:
                scheduler.commit(work, 5 if work.samples else None)

    steps(2)

    def round_() -> float:
        begin = time.perf_counter()
        steps(BLOCK)
        return (time.perf_counter() - begin) / BLOCK / requests * 1e6

    return best(round_)


@dataclass
class Nothing:
    """A runner whose every answer is token 7."""

    kv: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros((64, BLOCK * 8), np.uint8))
    kernel_class: str = "nothing"
    row_exact: bool = True
    weights_digest: str = "sha256:nothing"
    block_bytes: int = BLOCK * 8

    def forward(self, segments: Sequence[Segment], *, stop: StopFlag | None = None) -> Logits:
        del stop
        logits = np.zeros((sum(s.logits == "last" for s in segments), 16), np.float32)
        logits[:, 7] = 1
        return logits


@dataclass(frozen=True)
class Seven:
    token: int = 7
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Letters:
    def push(self, token: int, /) -> str:
        return chr(65 + token % 26)

    def flush(self) -> str:
        return ""


def seven(*_: Any, **__: Any) -> Seven:
    return Seven()


class Bench:
    """One session over a model, and requests put to it."""

    def __init__(self, model: Model, folder: Path, **settings: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.Event()
        self._over: asyncio.Future[Ending] = self._loop.create_future()
        config = Config(name="bench", model_name="bench", store=folder.as_uri(), **settings)
        self.session = Session(
            config, open_model=lambda: model, ended=self._ended, serving=self._served
        )

    def _ended(self, ending: Ending) -> None:
        self._loop.call_soon_threadsafe(self._over.set_result, ending)

    def _served(self) -> None:
        self._loop.call_soon_threadsafe(self._serving.set)

    async def start(self) -> None:
        self.session.start()
        await self._serving.wait()

    async def ask(self, name: str, prompt: tuple[int, ...], answer: int) -> None:
        params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
        stream = self.session.submit(Request(id=name, prompt=prompt, params=params))
        reader = stream.reader(lead=None)
        while await reader.batch():
            pass
        self.session.release(name)

    async def end(self) -> None:
        self.session.pause()
        await self._over
        self.session.join()


def resident() -> float:
    """Memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def memory(folder: Path, *, requests: int) -> dict[str, float]:
    """Memory after a tenth of the requests, and after all of them."""
    model = Model(
        runner=Nothing(),
        tokenizer=None,
        decoder=Letters,
        sample=seven,
        eos=frozenset(),
        context_length=1024,
    )
    # A store that keeps all would grow as it should: what stays is bounded by its budget.
    bench = Bench(model, folder, host_bytes=64 * BLOCK * 8, store_bytes=256 * BLOCK * 8)
    await bench.start()
    found = {}
    for number in range(requests):
        await bench.ask(f"{number}", tuple((number * 31 + n) % 16 for n in range(100)), 4)
        if number + 1 in (requests // 10, requests):
            found[f"MiB after {number + 1} requests"] = round(resident(), 1)
    await bench.end()
    return found


async def decode(model: Model, folder: Path, *, checkpoint_tokens: int, answer: int) -> float:
    """Tokens per second of eight answers side by side."""
    bench = Bench(model, folder, checkpoint_tokens=checkpoint_tokens, prefill=64)
    await bench.start()
    asks = [bench.ask(f"{n}", tuple(range(1000 + n, 1032 + n)), answer) for n in range(8)]
    begin = time.perf_counter()
    await asyncio.gather(*asks)
    seconds = time.perf_counter() - begin
    await bench.end()
    return 8 * answer / seconds


async def checkpoints(model: Model, folder: Path, *, rounds: int) -> dict[str, float]:
    """Decode with the default interval, and with none, in turn."""
    speeds: dict[int, list[float]] = {256: [], 1 << 40: []}
    for number in range(rounds):
        for interval, found in speeds.items():
            place = folder / f"{number}-{interval}"
            speed = await decode(model, place, checkpoint_tokens=interval, answer=256)
            found.append(speed)
    saving, free = (median(found) for found in speeds.values())
    return {
        "tok/s with checkpoints": round(saving, 1),
        "tok/s without": round(free, 1),
        "cost of checkpoints": round(1 - max(speeds[256]) / max(speeds[1 << 40]), 3),
    }


async def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def tell(name: str, value: Any) -> None:
        found[name] = value
        print(f"{name}: {value}", flush=True)

    for blocks in SIZES:
        tell(f"append, ns, of {blocks} blocks", round(append(blocks)))
    for requests, prompt in ((1, 256), (32, 256), (32, 4096)):
        name = f"scheduler, us per request and step, {requests} requests of {prompt} tokens"
        tell(name, round(scheduling(requests, prompt), 2))
    for name, value in (await memory(folder / "memory", requests=given.requests)).items():
        tell(name, value)
    if given.model:
        flags = ["--model", given.model, "--context-length", "2048"]
        model = open_model(parse_settings(flags, os.environ))
        for name, value in (await checkpoints(model, folder, rounds=given.rounds)).items():
            tell(name, value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="GGUF file or folder, for the cost of checkpoints")
    parser.add_argument("--requests", type=int, default=10_000, help="of which the memory is shown")
    parser.add_argument("--rounds", type=int, default=5, help="with and without checkpoints")
    parser.add_argument("--folder", help="where the stores go")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        found = asyncio.run(measure(given, Path(place).resolve()))
    save({"where": where(), "figures": found}, given.out)


if __name__ == "__main__":
    main()
