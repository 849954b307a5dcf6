"""The gateway as a process: at its end open answers come whole, and its log has no keys."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from gatewayrig import KEY, GatewayProcess, Played

NewGateway = Callable[..., GatewayProcess]
BODY = {"model": KEY, "input": "x", "stream": True}


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    """A session whose streams end when a test says so."""
    session = Played()
    await session.start()
    yield session
    await session.stop()


class Stream:
    """A stream with one event before `go`, and one after it."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(b"first ")
        await self.go.wait()
        await response.write(b"last")
        return response


async def started(gateway: NewGateway, played: Played, folder: Path, *flags: str) -> GatewayProcess:
    table = folder / "sessions.yaml"
    table.write_text(f"sessions: {{{KEY}: '{played.url}'}}\n")
    door = await asyncio.to_thread(gateway, f"--sessions={table}", *flags)
    await asyncio.to_thread(door.until, lambda: door.get("/readyz")[0] == 200, "ready")
    return door


async def test_after_sigterm_open_answers_come_whole_and_then_it_ends(
    gateway: NewGateway, played: Played, tmp_path: Path
) -> None:
    stream = Stream()
    played.answer = stream.answer
    door = await started(gateway, played, tmp_path, "--drain-seconds=60")
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{door.url}/v1/responses", json=BODY) as answer,
    ):
        assert await answer.content.readany() == b"first "
        door.process.terminate()
        await asyncio.to_thread(door.until, lambda: refuses(door), "closed to new clients")
        stream.go.set()
        assert await answer.content.read() == b"last"
    assert await asyncio.to_thread(door.process.wait, 60) == 0


async def test_before_it_closes_it_is_unready_and_still_takes_requests(
    gateway: NewGateway, played: Played, tmp_path: Path
) -> None:
    door = await started(gateway, played, tmp_path, "--linger-seconds=600")
    door.process.terminate()
    await asyncio.to_thread(door.until, lambda: door.get("/readyz")[0] == 503, "unready")
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{door.url}/v1/responses", json=BODY) as answer,
    ):
        assert answer.status == 200
    door.process.kill()


async def test_an_answer_longer_than_the_patience_breaks_off_and_is_not_taken_for_whole(
    gateway: NewGateway, played: Played, tmp_path: Path
) -> None:
    played.answer = Stream().answer
    door = await started(gateway, played, tmp_path, "--drain-seconds=0.1")
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{door.url}/v1/responses", json=BODY) as answer,
    ):
        assert await answer.content.readany() == b"first "
        door.process.terminate()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()
    assert await asyncio.to_thread(door.process.wait, 60) == 0
    await asyncio.wait_for(played.gone.wait(), 30)


async def test_a_request_that_cannot_be_read_does_not_bring_its_key_into_the_log(
    gateway: NewGateway, played: Played, tmp_path: Path
) -> None:
    door = await started(gateway, played, tmp_path)
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer very-secret\x01\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    assert "very-secret" not in door.text()


def refuses(door: GatewayProcess) -> bool:
    try:
        door.get("/healthz")
    except OSError:
        return True
    return False
