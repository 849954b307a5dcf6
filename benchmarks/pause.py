"""How long a pause takes until it is durable, and what a resume saves against computing again.

In one warm process over the real model: sessions are started on one folder after another and
paused at random moments, in decode and in the middle of a prefill, at several context lengths.
Prints a table, and writes every sample as JSON with `--out`.
"""

import argparse
import asyncio
import os
import random
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from jsonfile import save
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.engine.request import Request, SamplingParams
from sojourn_runtime.model.protocol import Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.opening import open_model
from sojourn_runtime.session import Config, Ending, Session
from sojourn_runtime.settings import parse_settings
from sojourn_runtime.stream import Stream
from sojourn_runtime.worker import Computes, Model
from where import where

LENGTHS = (100, 500, 2000)
"""Tokens of context: a question, a chat, a document."""


@dataclass(frozen=True)
class Watched:
    """The runner with a look at every step, and optionally under another class's name."""

    inner: Computes
    before: Callable[[Sequence[Segment]], None] = lambda _: None
    kernel_class: str = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        self.before(segments)
        return self.inner.forward(segments, stop=stop)


@dataclass
class Run:
    """One session on a folder, from its start to its pause."""

    model: Model
    folder: Path
    before: Callable[[Sequence[Segment]], None] = lambda _: None
    kernel_class: str = ""
    endings: list[Ending] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.over, self.serving = threading.Event(), threading.Event()
        runner = Watched(
            self.model.runner, self.before, self.kernel_class or self.model.runner.kernel_class
        )
        model = Model(
            runner=runner,
            tokenizer=self.model.tokenizer,
            decoder=self.model.decoder,
            sample=self.model.sample,
            eos=frozenset(),
            context_length=self.model.context_length,
        )
        config = Config(name="bench", model_name="bench", store=self.folder.as_uri())
        self.session = Session(
            config, open_model=lambda: model, ended=self.ended, serving=self.serving.set
        )
        self.begin = perf_counter()
        self.session.start()
        self.serving.wait()
        assert not self.endings, self.endings

    def ended(self, ending: Ending) -> None:
        self.at = perf_counter()
        self.endings.append(ending)
        self.over.set()
        self.serving.set()

    def pause(self) -> dict[str, Any]:
        """Pause now; the times in milliseconds until it is durable."""
        begin = perf_counter()
        self.session.pause()
        self.over.wait()
        words = self.endings[0].words
        assert words["reason"] == "Paused", words
        steps = self.session.stats
        return {
            "totalMs": (self.at - begin) * 1000,
            "stopMs": words["stopMs"],
            "saveMs": words["saveMs"],
            "syncMs": words["syncMs"],
            "newBytes": words["snapshot"]["newBytes"],
            "tokens": words["snapshot"]["tokens"],
            "stepMs": steps.step_seconds / max(1, steps.steps) * 1000,
        }


def request(tokens: int, *, seed: int = 0) -> Request:
    dice = random.Random(seed)
    return asked(tuple(dice.randrange(1000, 40_000) for _ in range(tokens)))


def asked(prompt: tuple[int, ...], *, answer: int = 100_000) -> Request:
    """A request that runs on by itself."""
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    return Request(id="one", prompt=prompt, params=params, background=True)


async def reach(stream: Stream, position: int) -> None:
    reader = stream.reader(after=position - 1, lead=None)
    await anext(reader)
    reader.close()


async def in_decode(model: Model, tokens: int, samples: int, folder: Path) -> list[dict[str, Any]]:
    """One long answer, paused and resumed again and again."""
    found = []
    run = Run(model, folder)
    run.session.submit(request(tokens))
    stream = run.session.stream("one")
    dice = random.Random(tokens)
    for _ in range(samples):
        assert stream is not None
        await reach(stream, len(stream.events) + dice.randrange(1, 12))
        await asyncio.sleep(dice.random() * 0.02)  # anywhere within a step, not just at its end
        found.append(run.pause())
        run = Run(model, folder)
        stream = run.session.stream("one")
    run.pause()
    return found


async def in_prefill(model: Model, tokens: int, samples: int, folder: Path) -> list[dict[str, Any]]:
    """Prompts with a common beginning, paused at a random moment of the step that passes `tokens`.

    The beginning comes from the store, as a returning chat's does: computing 2,000 tokens for each
    sample would change nothing of what is measured.
    """
    dice = random.Random(tokens)
    common = request(max(0, tokens // BLOCK - 1) * BLOCK or 1).prompt
    run = Run(model, folder)
    await reach(run.session.submit(asked(common, answer=1)), 0)
    run.session.release("one")
    run.pause()
    found = []
    for number in range(samples):
        there = threading.Event()

        def before(segments: Sequence[Segment], there: threading.Event = there) -> None:
            if segments[0].start + len(segments[0].tokens) > tokens:
                there.set()

        run = Run(model, folder, before)
        tail = request(4 * BLOCK, seed=number + 1).prompt
        run.session.submit(asked((*common, *tail)))
        there.wait()
        await asyncio.sleep(dice.random() * 0.08)  # anywhere within the step
        found.append(run.pause() | {"stepMs": None})
        run = Run(model, folder)
        run.session.release("one")
        run.pause()
    return found


async def first_token(model: Model, folder: Path, kernel_class: str) -> dict[str, Any]:
    """From the start of a session to the next token of its restored request."""
    begin = perf_counter()
    run = Run(model, folder, kernel_class=kernel_class)
    stream = run.session.stream("one")
    assert stream is not None
    status = run.session.status()
    known = status["resumed"]["tokens"] - len(stream.request.prompt)
    await reach(stream, known)  # made by the step that restored it, as often as not
    seconds = perf_counter() - begin
    status = run.session.status()
    run.pause()
    return {"ms": seconds * 1000, "recomputed": status["resumed"]["recomputedTokens"]}


async def resume(model: Model, samples: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The same 2,000 tokens brought back, by their blocks and by computing them again."""
    run = Run(model, folder)
    stream = run.session.submit(request(2000))
    await reach(stream, 2)
    run.pause()
    own = model.runner.kernel_class
    found: dict[str, list[dict[str, Any]]] = {"blocks": [], "again": []}
    for _ in range(samples):
        found["blocks"].append(await first_token(model, folder, own))
    for number in range(max(3, samples // 10)):
        found["again"].append(await first_token(model, folder, f"other-{number}"))
    return found


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def row(name: str, samples: list[dict[str, Any]]) -> str:
    def both(key: str) -> str:
        values = [sample[key] for sample in samples]
        return f"{median(values):8.1f} {quantile(values, 0.99):8.1f}"

    steps = [sample["stepMs"] for sample in samples if sample["stepMs"]]
    step = f"{median(steps):8.1f}" if steps else "       -"
    size = median(sample["newBytes"] for sample in samples) / 2**20
    columns = " ".join(both(key) for key in ("totalMs", "stopMs", "saveMs", "syncMs"))
    return f"{name:>14} {len(samples):5} {columns} {step} {size:8.1f}"


async def measure(model: Model, samples: int, folder: Path) -> dict[str, Any]:
    head = " ".join(f"{key:>8} {'p99':>8}" for key in ("total", "stop", "save", "fsync"))
    print(f"{'pause, ms':>14} {'n':>5} {head} {'step':>8} {'new MiB':>8}", flush=True)
    found: dict[str, Any] = {"where": where(), "decode": {}, "prefill": {}}
    for tokens in LENGTHS:
        decode = await in_decode(model, tokens, samples, folder / f"decode-{tokens}")
        print(row(f"decode {tokens}", decode), flush=True)
        prefill = await in_prefill(model, tokens, samples, folder / f"prefill-{tokens}")
        print(row(f"prefill {tokens}", prefill), flush=True)
        found["decode"][tokens], found["prefill"][tokens] = decode, prefill
    found["resume"] = await resume(model, samples, folder / "resume")
    for how, values in found["resume"].items():
        times = [value["ms"] for value in values]
        print(
            f"resume of 2000 tokens, {how}: p50 {median(times):.1f} ms, "
            f"p99 {quantile(times, 0.99):.1f} ms, n {len(times)}, "
            f"recomputed {values[-1]['recomputed']}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="GGUF file or folder of the model")
    parser.add_argument("--samples", type=int, default=50, help="per length and phase")
    parser.add_argument("--folder", help="where the stores go; the disk decides the fsync")
    parser.add_argument("--out", type=Path, help="file for all samples, as JSON")
    given = parser.parse_args()
    flags = ["--model", given.model, "--context-length", "8192"]
    model = open_model(parse_settings(flags, os.environ))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        found = asyncio.run(measure(model, given.samples, Path(folder).resolve()))
    save(found, given.out)


if __name__ == "__main__":
    main()
