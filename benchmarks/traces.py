"""Returning turns of recorded traces with a KV budget of a tenth of what they need.

Conversations of the Azure or Mooncake trace are replayed twice in this process, on the real model
and with the trace's own arrivals, scaled in time and length: once as the runtime is, and once with
each request under a salt of its own, so that every turn is computed anew. Prints the time to first
token of returning turns of both, the tokens computed again, and where each conversation's context
is at the end. The traces are read from the files given; nothing of them is kept.
"""

import argparse
import asyncio
import csv
import json
import os
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from jsonfile import save
from pause import quantile
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.engine.request import Request, SamplingParams
from sojourn_runtime.opening import open_model
from sojourn_runtime.session import Config, Ending, Session
from sojourn_runtime.settings import parse_settings
from sojourn_runtime.worker import Model
from where import where

CONTEXT: Final = 768
"""Tokens of the longest turn kept; a tenth of the working set must hold at least one."""
TURNS: Final = 4
"""Of a conversation at most, so that many take part."""
ANSWER: Final = 24
"""Tokens of an answer at most: what returns is context, not answers."""
LOAD: Final = 0.6
"""Share of the time that computing every turn anew would keep the machine busy."""
SLACK: Final = 256
"""Azure's trace names no conversations: a request continues the one whose context and answer are
at most so many tokens shorter, and the longest of those."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a trace: seconds from its begin, conversation, tokens of prompt and answer."""

    at: float
    talk: int
    prompt: int
    answer: int


def azure(path: Path, *, scale: float) -> list[Turn]:
    """TIMESTAMP, ContextTokens, GeneratedTokens; conversations are guessed, see `SLACK`."""
    turns: list[Turn] = []
    ends: dict[int, int] = {}
    begin: datetime | None = None
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            begin = begin or at
            context, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            below = [t for t, end in ends.items() if context - SLACK <= end < context]
            talk = max(below, key=lambda t: ends[t], default=len(turns))
            ends[talk] = context + answer
            seconds = (at - begin).total_seconds()
            turns.append(Turn(seconds, talk, int(context * scale), max(1, int(answer * scale))))
            if len(turns) == ROWS:
                break
    return turns


def mooncake(path: Path, *, scale: float) -> list[Turn]:
    """Rows with the hashes of their 512-token blocks: who shares all full ones goes on."""
    turns: list[Turn] = []
    talks: dict[tuple[int, ...], int] = {}
    with path.open() as file:
        for line in file:
            row = json.loads(line)
            hashes = tuple(row["hash_ids"])
            found = (talks.get(hashes[:count]) for count in range(len(hashes), 2, -1))
            talk = next((one for one in found if one is not None), len(turns))
            talks[hashes[:-1]] = talk
            prompt, answer = int(row["input_length"] * scale), int(row["output_length"] * scale)
            turns.append(Turn(row["timestamp"] / 1000, talk, prompt, max(1, answer)))
            if len(turns) == ROWS:
                break
    return turns


ROWS: Final = 4000
"""Rows read of a trace: more than enough conversations begin and go on in them."""
TRACES: Final = {
    "azure": (azure, "azure_llm_2023_conv.csv", 1 / 4),
    "mooncake": (mooncake, "mooncake_conversation.jsonl", 1 / 16),
}
"""Reader, file and scale of lengths, by which most turns fit the model's context."""


def chosen(turns: Sequence[Turn], *, most: int) -> list[Turn]:
    """Conversations that return at least once and fit, up to so many tokens of prompts."""
    talks: dict[int, list[Turn]] = {}
    for turn in turns:
        if turn.prompt + ANSWER <= CONTEXT:
            talks.setdefault(turn.talk, []).append(turn)
    found: list[Turn] = []
    for talk in talks.values():
        if len(talk) > 1 and talk[0].prompt >= BLOCK and sum(t.prompt for t in found) < most:
            found += talk[:TURNS]
    return sorted(found, key=lambda turn: turn.at)


def spread(turns: Sequence[Turn], *, seconds: float) -> list[Turn]:
    """The same order and rhythm in so many seconds."""
    first, last = turns[0].at, turns[-1].at
    factor = seconds / max(1e-9, last - first)
    return [replace(turn, at=(turn.at - first) * factor) for turn in turns]


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def working_set(turns: Iterable[Turn]) -> int:
    """Blocks that hold the last context of every conversation."""
    last = {turn.talk: turn.prompt + ANSWER for turn in turns}
    return sum(blocks(tokens) for tokens in last.values())


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn that was replayed."""

    talk: int
    returning: bool
    ms: float
    prompt: int
    known: int
    """Tokens of the prompt that the conversation had computed before."""
    device: int
    host: int
    store: int


class Replay:
    """One session and its conversations."""

    def __init__(self, model: Model, folder: Path, *, host_bytes: int, salted: bool) -> None:
        self._salted = salted
        self._serving = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[Ending] = self._loop.create_future()
        config = Config(
            name="traces",
            model_name="traces",
            store=folder.as_uri(),
            host_bytes=host_bytes,
            store_bytes=1 << 40,
        )
        self.session = Session(
            config,
            open_model=lambda: model,
            ended=self._ended,
            serving=self._served,
        )
        self._model = model
        self.samples: list[Sample] = []
        self.prompts: dict[tuple[int, int], tuple[int, ...]] = {}
        self._histories: dict[int, tuple[int, ...]] = {}
        self._numbers: dict[int, int] = {}
        self._busy: dict[int, asyncio.Lock] = {}

    def _ended(self, ending: Ending) -> None:
        self._loop.call_soon_threadsafe(self._over.set_result, ending)

    def _served(self) -> None:
        self._loop.call_soon_threadsafe(self._serving.set)

    async def run(self, turns: Sequence[Turn], prompts: dict[tuple[int, int], Any]) -> None:
        """All turns at their times; `prompts` are those of another replay, if there was one."""
        self.session.start()
        await self._serving.wait()
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for turn in turns:
                await asyncio.sleep(max(0.0, begin + turn.at - time.perf_counter()))
                tasks.create_task(self._turn(turn, prompts))

    async def _turn(self, turn: Turn, prompts: dict[tuple[int, int], Any]) -> None:
        async with self._busy.setdefault(turn.talk, asyncio.Lock()):  # a talk has one turn at once
            number = self._numbers[turn.talk] = self._numbers.get(turn.talk, -1) + 1
            history = self._histories.get(turn.talk, ())
            place = turn.talk, number
            prompt = prompts.get(place) or _prompt(history, turn, seed=number)
            self.prompts[place] = prompt
            name = f"{turn.talk}-{number}"
            params = SamplingParams(
                max_tokens=min(turn.answer, ANSWER), temperature=0.0, ignore_eos=True
            )
            salt = name if self._salted else ""
            asked = time.perf_counter()
            stream = self.session.submit(Request(id=name, prompt=prompt, params=params, salt=salt))
            reader = stream.reader(lead=None)
            said = [(await anext(reader)).token]
            ms = (time.perf_counter() - asked) * 1000
            said += [event.token async for event in reader]
            self.session.release(name)
            known = max(0, len(history) - 1)
            self.samples.append(
                Sample(turn.talk, number > 0, ms, len(prompt), known, **asdict(stream.origin))
            )
            self._histories[turn.talk] = (*prompt, *said)

    async def kept(self) -> dict[str, int]:
        """Conversations whose whole context is there, by the farthest tier that it needs."""
        found = {"device": 0, "host": 0, "store": 0, "talks": len(self._histories)}
        for talk, history in self._histories.items():
            params = SamplingParams(max_tokens=1, temperature=0.0)
            request = Request(id=f"probe-{talk}", prompt=(*history, 1), params=params)
            stream = self.session.submit(request)
            await anext(stream.reader(lead=None))
            self.session.release(request.id)
            if stream.origin.total >= len(history) - 1:
                needed = [tier for tier, count in asdict(stream.origin).items() if count]
                found[needed[-1]] += 1
        return found

    async def end(self) -> None:
        self.session.pause()
        await self._over
        self.session.join()


def _prompt(history: tuple[int, ...], turn: Turn, *, seed: int) -> tuple[int, ...]:
    """What was said, and new words up to the trace's length."""
    dice = random.Random(f"{turn.talk}-{seed}")
    new = max(8, turn.prompt - len(history))
    room = max(1, CONTEXT - ANSWER - len(history))
    return (*history, *(dice.randrange(1000, 40_000) for _ in range(min(new, room))))


async def speed(model: Model, folder: Path) -> float:
    """Tokens of prompts per second, here and now; the best of some, the first warms up."""
    replay = Replay(model, folder, host_bytes=0, salted=True)
    await replay.run([Turn(number * 1.0, number, 512, 1) for number in range(4)], {})
    await replay.end()
    return 512_000 / min(sample.ms for sample in replay.samples)


async def measure(
    model: Model, turns: list[Turn], folder: Path, *, host: int, most: float
) -> dict[str, Any]:
    """The trace as it is, and computed anew."""
    size = model.runner.block_bytes
    rate = await speed(model, folder / "speed")
    tokens = sum(turn.prompt for turn in turns)
    turns = spread(turns, seconds=min(most, tokens / rate / LOAD))
    print(f"  {tokens} tokens of prompts in {turns[-1].at:.0f} s, {rate:.0f} tokens/s", flush=True)
    ours = Replay(model, folder / "ours", host_bytes=host * size, salted=False)
    await ours.run(turns, {})
    moved = {k: v for k, v in ours.session.gauges().items() if k.startswith("kv_blocks_")}
    kept = await ours.kept()
    await ours.end()
    again = Replay(model, folder / "again", host_bytes=0, salted=True)
    await again.run(turns, ours.prompts)
    await again.end()
    return {"ours": ours.samples, "again": again.samples, "kept": kept, "moved": moved}


def report(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of one trace."""
    back = [sample for sample in found["ours"] if sample.returning]
    again = [sample.ms for sample in found["again"] if sample.returning]
    times = [sample.ms for sample in back]
    recomputed = sum(max(0, s.known - s.device - s.host - s.store) for s in back)
    figures = {
        "turns": len(found["ours"]),
        "returning": len(back),
        "ttftP50Ms": round(median(times), 1),
        "ttftP95Ms": round(quantile(times, 0.95), 1),
        "recomputeP50Ms": round(median(again), 1),
        "recomputeP95Ms": round(quantile(again, 0.95), 1),
        "ratioP95": round(quantile(times, 0.95) / quantile(again, 0.95), 3),
        "recomputedTokens": recomputed,
        "tokensFrom": {
            tier: sum(getattr(s, tier) for s in back) for tier in ("device", "host", "store")
        },
        "kept": found["kept"],
        "moved": found["moved"],
    }
    print("  " + json.dumps(figures), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="GGUF file or folder of the model")
    parser.add_argument("--traces", type=Path, required=True, help="folder of the trace files")
    parser.add_argument("--trace", choices=list(TRACES), action="append", help="default: all")
    parser.add_argument("--tokens", type=int, default=60_000, help="of prompts, per trace")
    parser.add_argument("--seconds", type=float, default=110, help="per replay, at most")
    parser.add_argument("--folder", help="where the stores go")
    parser.add_argument("--out", type=Path, help="file for all samples, as JSON")
    given = parser.parse_args()
    results: dict[str, Any] = {"where": where()}
    for name in given.trace or list(TRACES):
        reader, file, scale = TRACES[name]
        turns = chosen(reader(given.traces / file, scale=scale), most=given.tokens)
        needed = working_set(turns)
        device = max(blocks(CONTEXT), needed // 15 + 1)
        host = max(0, needed // 10 - device)
        print(
            f"{name}: {len({t.talk for t in turns})} conversations, {len(turns)} turns, working "
            f"set {needed} blocks, device {device}, host {host}",
            flush=True,
        )
        flags = ["--model", given.model, "--context-length", str(CONTEXT)]
        block_bytes = open_model(parse_settings(flags, os.environ)).runner.block_bytes
        flags += ["--kv-bytes", str(device * block_bytes)]
        model = open_model(parse_settings(flags, os.environ))
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            place = Path(folder).resolve()
            found = asyncio.run(measure(model, turns, place, host=host, most=given.seconds))
        samples = {how: [asdict(s) for s in found[how]] for how in ("ours", "again")}
        results[name] = report(found) | {"samples": samples}
    save(results, given.out)


if __name__ == "__main__":
    main()
