"""What the gateway adds to a request and to each token of a stream, beside direct access.

Three processes on one machine: a session that answers at once or at a given pace (no model, which
would hide microseconds behind milliseconds), the gateway in front of it, and this client, which
asks both in turn. Each token carries the moment it was sent at, by the one clock that all processes
of a machine share. Prints the tables, and writes all numbers as JSON with `--out`.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Final

import aiohttp
import psutil
from aiohttp import web
from jsonfile import save
from sojourn_api import names
from where import where

KEY: Final = "bench/one"
REQUESTS: Final = 400
PACED: Final = ((1, 100, 400), (32, 25, 100), (128, 10, 40))
"""Streams at once, tokens per second of each, tokens of each: what people read at, or faster."""
FLOOD_TOKENS: Final = 10_000
ROUNDS: Final = 3
"""Of which the tables show the best."""
CPU: Final = "CPU of the gateway for a request, ms"
"""What a busy machine does not blur, unlike the times."""
UNPACED: Final = "one stream as fast as it goes, tokens/s"
Found = dict[str, dict[str, list[list[float]]]]
"""Samples by what is measured, way and round."""


# -- the session --


async def answer(http: web.Request) -> web.StreamResponse:
    """A response of `max_output_tokens`, `pace` tokens a second; at once, where that is 0."""
    asked = await http.json()
    if not asked.get("stream"):
        return web.json_response({"id": "resp_1", "object": "response", "output": []})
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(http)
    created = {"type": "response.created", "response": {"id": "resp_1"}}
    await out.write(event(created | {"sequence_number": 0}))
    count, pace = asked["max_output_tokens"], asked["pace"]
    for number in range(1, count + 1):
        if pace:
            await asyncio.sleep(1 / pace)
        delta = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": " token"}
        await out.write(event(delta | {"sequence_number": number, "sent": perf_counter()}))
    await out.write(event({"type": "response.completed", "sequence_number": count + 1}))
    return out


def event(body: dict[str, Any]) -> bytes:
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()


async def status(_: web.Request) -> web.Response:
    return web.json_response({"phase": "Serving", "model": "bench"})


async def serve() -> None:
    app = web.Application()
    app.router.add_post("/v1/responses", answer)
    app.router.add_get(names.PATH_STATUS, status)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"listening on port {runner.addresses[0][1]}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


# -- the client --


@contextmanager
def process(*command: str) -> Iterator[tuple[str, int]]:
    """Base URL and process id of a server that says on stderr which port it listens on."""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        found = None
        while not found:
            line = running.stderr.readline()
            assert line, f"{command} ended"
            found = re.search(r"listening on port (\d+)", line)
        try:
            yield f"http://127.0.0.1:{found[1]}", running.pid
        finally:
            running.kill()


async def until_ready(http: aiohttp.ClientSession, base: str) -> None:
    while (await http.get(base + names.PATH_READY)).status != 200:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.05)


async def request_ms(http: aiohttp.ClientSession, base: str) -> float:
    begin = perf_counter()
    async with http.post(f"{base}/v1/responses", json={"model": KEY}) as got:
        await got.read()
        assert got.status == 200, await got.text()
    return (perf_counter() - begin) * 1000


async def sent_times(
    http: aiohttp.ClientSession, base: str, *, tokens: int, pace: float
) -> AsyncIterator[tuple[float, float]]:
    """(sent, received) of each token of one stream, in seconds."""
    body = {"model": KEY, "stream": True, "max_output_tokens": tokens, "pace": pace}
    async with http.post(f"{base}/v1/responses", json=body) as got:
        rest = b""
        async for chunk in got.content.iter_any():
            now = perf_counter()
            *whole, rest = (rest + chunk).split(b"\n\n")
            for frame in whole:
                if b'"sent":' in frame:
                    yield json.loads(frame.partition(b"data: ")[2])["sent"], now


async def lags_ms(
    http: aiohttp.ClientSession, base: str, *, streams: int, pace: float, tokens: int
) -> list[float]:
    async def one() -> list[float]:
        times = sent_times(http, base, tokens=tokens, pace=pace)
        return [(received - sent) * 1000 async for sent, received in times]

    found = await asyncio.gather(*(one() for _ in range(streams)))
    assert all(len(lags) == tokens for lags in found)
    return [lag for lags in found for lag in lags]


async def tokens_per_second(http: aiohttp.ClientSession, base: str) -> float:
    begin = perf_counter()
    times = sent_times(http, base, tokens=FLOOD_TOKENS, pace=0)
    assert len([pair async for pair in times]) == FLOOD_TOKENS
    return FLOOD_TOKENS / (perf_counter() - begin)


async def measure(bases: dict[str, str], gateway: psutil.Process) -> Found:
    """Both ways in turn."""
    found: Found = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await until_ready(http, bases["gateway"])
        for base in bases.values():
            await request_ms(http, base)
        for _ in range(ROUNDS):
            for way, base in bases.items():

                def note(what: str, samples: list[float], way: str = way) -> None:
                    found.setdefault(what, {}).setdefault(way, []).append(samples)

                before = cpu_ms(gateway)
                note("a request", [await request_ms(http, base) for _ in range(REQUESTS)])
                note(CPU, [(cpu_ms(gateway) - before) / REQUESTS])
                for streams, pace, tokens in PACED:
                    lags = await lags_ms(http, base, streams=streams, pace=pace, tokens=tokens)
                    note(f"a token, streams at once: {streams}, tokens/s of each: {pace}", lags)
                note(UNPACED, [await tokens_per_second(http, base)])
    return found


def cpu_ms(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system) * 1000


def rows(found: Found) -> Iterator[str]:
    yield "| what | direct p50 ms | p99 | gateway p50 ms | p99 | added p50 ms | p50 to direct |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for what, ways in found.items():
        if what in {UNPACED, CPU}:
            continue
        best = [min(ways[way], key=median) for way in ("direct", "gateway")]
        (d, d99), (g, g99) = ((median(one), quantiles(one, n=100)[98]) for one in best)
        yield f"| {what} | {d:.2f} | {d99:.2f} | {g:.2f} | {g99:.2f} | {g - d:.2f} | {g / d:.1f}x |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return
    with tempfile.TemporaryDirectory() as folder, process(__file__, "--serve") as (direct, _):
        table = Path(folder) / "sessions.yaml"
        table.write_text(f"sessions: {{{KEY}: '{direct}'}}\n")
        gateway = process(
            *("-m", "sojourn_gateway", "--host=127.0.0.1", "--port=0", f"--sessions={table}")
        )
        with gateway as (base, pid):
            watched = psutil.Process(pid)
            found = asyncio.run(measure({"direct": direct, "gateway": base}, watched))
            memory = watched.memory_info().rss / 2**20
    print("\n".join(rows(found)))
    best = {way: max(rate for (rate,) in rounds) for way, rounds in found[UNPACED].items()}
    print(
        f"\nOne stream as fast as it goes: {best['gateway']:,.0f} tokens/s, "
        f"{best['gateway'] / best['direct']:.2f} of direct; "
        f"{min(found[CPU]['gateway'])[0]:.1f} ms of CPU for a request; "
        f"{memory:.0f} MiB at the end (load {os.getloadavg()[0]:.1f})."
    )
    save({"where": where(), "samples": found, "memoryMiB": memory}, options.out)


if __name__ == "__main__":
    main()
