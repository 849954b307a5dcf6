"""What a Gold request waits for while Silver keeps the machine busy, and what that costs Silver.

Gold asks for a tenth of the time; eight Silver conversations with long prompts and long answers
compute all the time. Both ways of sharing are measured: two pods on one GPU, which an arbiter's
pages tell of each other, and one engine with a priority per request. Beside them: Gold alone, and
both without any priority. Rounds alternate, so that a change of the machine's load meets all.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

from jsonfile import save
from pause import quantile
from sojourn_api.arbiter import Tier, bump, create_grant, create_index
from sojourn_runtime.engine.request import Request, SamplingParams
from sojourn_runtime.opening import open_model
from sojourn_runtime.session import Config, Ending, Session
from sojourn_runtime.settings import HOST_KV, parse_settings
from where import where

GOLD, SILVER = 1000, 500
SILVERS: Final = 8
DUTY: Final = 0.1
GOLD_PROMPT, GOLD_ANSWER = 256, 32
SILVER_PROMPT, SILVER_ANSWER = 1024, 256
MODES: Final = ("alone", "pods", "free pods", "engine", "free engine")


@dataclass
class Player:
    """One session and the requests that are put to it."""

    session: Session
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    silver: int = 0
    """Tokens of Silver, of prompts and answers."""
    _numbers: int = 0

    async def ask(self, *, prompt: int, answer: int, priority: int, gold: bool) -> None:
        self._numbers += 1
        dice = random.Random(f"{os.getpid()}-{self._numbers}")
        params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
        tokens = tuple(dice.randrange(1000, 40_000) for _ in range(prompt))
        name = f"{self._numbers}"
        last = time.perf_counter()
        stream = self.session.submit(
            Request(id=name, prompt=tokens, params=params, priority=priority)
        )
        try:
            async for event in stream.reader(lead=None):
                now = time.perf_counter()
                if gold:
                    (self.gaps if event.position else self.first).append(now - last)
                else:
                    self.silver += 1 if event.position else prompt + 1
                last = now
        finally:
            self.session.release(name)

    async def gold(self, seconds: float) -> None:
        """Requests with pauses nine times as long."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            await self.ask(prompt=GOLD_PROMPT, answer=GOLD_ANSWER, priority=0, gold=True)
            await asyncio.sleep((time.perf_counter() - begin) * (1 / DUTY - 1))

    async def silvers(self, seconds: float, *, priority: int) -> None:
        """Eight conversations, one request after another each."""

        async def one() -> None:
            while True:
                await self.ask(
                    prompt=SILVER_PROMPT, answer=SILVER_ANSWER, priority=priority, gold=False
                )

        tasks = [asyncio.create_task(one()) for _ in range(SILVERS)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def play(role: str, folder: Path, arbiter: Path, model: str, seconds: float) -> None:
    """One process: opens the model, waits for the word, plays, and says what it saw."""
    loop = asyncio.get_running_loop()
    serving = asyncio.Event()
    opened = open_model(parse_settings(["--model", model, "--context-length", "2048"], os.environ))

    def ended(_: Ending) -> None:
        """Killed at the end: nothing is to be saved."""

    def served() -> None:
        loop.call_soon_threadsafe(serving.set)

    config = Config(
        name=role,
        model_name="bench",
        store=folder.as_uri(),
        tier=GOLD if role == "gold" else SILVER,
        arbiter=arbiter,
        host_bytes=int(HOST_KV),
    )
    player = Player(Session(config, open_model=lambda: opened, ended=ended, serving=served))
    player.session.start()
    await serving.wait()
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    async with asyncio.TaskGroup() as tasks:
        if role != "silver":
            tasks.create_task(player.gold(seconds))
        if role != "gold":
            low = 1 if role == "both" else 0
            tasks.create_task(player.silvers(seconds, priority=low))
    found = {"first": player.first, "gaps": player.gaps, "silver": player.silver / seconds}
    print(json.dumps(found), flush=True)


def mounts(folder: Path) -> dict[str, Path]:
    """What Allocate mounts into a Gold and a Silver pod of one GPU."""
    grants = folder / "grants"
    index = create_index(grants)
    roots = {}
    for slot, (name, priority) in enumerate((("gold", GOLD), ("silver", SILVER))):
        own = create_grant(grants, str(slot), Tier(priority=priority))
        roots[name] = folder / f"mounts-{name}"
        (roots[name] / "gpu-0").mkdir(parents=True)
        (roots[name] / "gpu-0" / "own").symlink_to(own)
        (roots[name] / "gpu-0" / "all").symlink_to(grants)
    bump(index)
    return roots


def start(role: str, folder: Path, arbiter: Path, given: argparse.Namespace) -> Any:
    command = [sys.executable, __file__, "--model", given.model, "--seconds", str(given.seconds)]
    command += ["--role", role, "--folder", str(folder / f"store-{role}")]
    command += ["--arbiter", str(arbiter)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(stream: IO[str] | None) -> str:
    text = stream.readline() if stream is not None else ""
    if not text:
        raise SystemExit("a player ended early; see its message above")
    return text


def mode(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """One window of one mode, in fresh processes."""
    nowhere = Path(os.devnull)
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        folder = Path(place).resolve()
        roots = mounts(folder) if name == "pods" else {"gold": nowhere, "silver": nowhere}
        roles = {"alone": ["gold"], "engine": ["both"], "free engine": ["equals"]}
        players = [
            start(role, folder, roots.get(role, nowhere), given)
            for role in roles.get(name, ["gold", "silver"])
        ]
        try:
            for player in players:
                line(player.stdout)
            for player in players:
                player.stdin.write("go\n")
                player.stdin.flush()
            parts = [json.loads(line(player.stdout)) for player in players]
        finally:
            for player in players:
                player.kill()
                player.communicate()
    return {
        "first": [value for part in parts for value in part["first"]],
        "gaps": [value for part in parts for value in part["gaps"]],
        "silver": sum(part["silver"] for part in parts),
    }


def figures(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    first = [value * 1000 for each in rounds for value in each["first"]]
    gaps = [value * 1000 for each in rounds for value in each["gaps"]]
    return {
        "requests": len(first),
        "ttftP50Ms": round(median(first), 1),
        "ttftP95Ms": round(quantile(first, 0.95), 1),
        "itlP50Ms": round(median(gaps), 1),
        "itlP95Ms": round(quantile(gaps, 0.95), 1),
        "silverTokensPerSecond": round(sum(e["silver"] for e in rounds) / len(rounds), 1),
    }


def ratios(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """What is asked for: Gold against alone, Silver against no priority."""
    told = {}
    for name in ("pods", "engine"):
        for key in ("ttftP95Ms", "itlP95Ms"):
            told[f"{name} {key} / alone"] = round(found[name][key] / found["alone"][key], 2)
        silver, free = (found[n]["silverTokensPerSecond"] for n in (name, f"free {name}"))
        told[f"{name} silver / no priority"] = round(silver / free, 2)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="GGUF file or folder of the model")
    parser.add_argument("--seconds", type=float, default=45, help="per mode and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", help="where the stores go")
    parser.add_argument("--out", type=Path, help="file for all samples, as JSON")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--arbiter", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        asyncio.run(play(given.role, Path(given.folder), given.arbiter, given.model, given.seconds))
        return
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in MODES}
    for _ in range(given.rounds):
        for name in MODES:
            rounds[name].append(mode(name, given))
            print(f"{name:>12} {json.dumps(figures(rounds[name][-1:]))}", flush=True)
    found = {name: figures(each) for name, each in rounds.items()}
    for name, each in found.items():
        print(f"{name:>12} {json.dumps(each)}")
    for key, value in ratios(found).items():
        print(f"{key}: {value}")
    told = {"where": where(), "figures": found, "ratios": ratios(found), "rounds": rounds}
    save(told, given.out)


if __name__ == "__main__":
    main()
