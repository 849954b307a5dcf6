"""What tests of the gateway work with: the gateway, and sessions that a test plays over real HTTP.

Helpers only; the fixtures are in `conftest`.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from sojourn_api import names
from sojourn_gateway.app import App
from sojourn_gateway.directory import Directory
from sojourn_gateway.lobby import Lobby
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.session import Session
from sojourn_gateway.settings import Settings
from sojourn_gateway.upstream import Upstream, http_client

ROOT = Path(__file__).resolve().parents[3]
KEY = "chats/one"
SECONDS = 60.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Played:
    """A session whose answers a test plays; it counts what reaches it."""

    def __init__(self) -> None:
        self.answer: Handler = self.echo
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.gone = asyncio.Event()
        """A client went away in the middle of an answer."""
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get(names.PATH_STATUS, self._status)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        try:
            return await self.answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"phase": "Serving", "model": "smol"})

    async def echo(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"path": request.path_qs, "method": request.method})


@dataclass
class Front:
    """A gateway in this process, its directory, one played session, and a client."""

    url: str
    http: aiohttp.ClientSession
    directory: Directory
    played: Played
    metrics: Metrics
    lobby: Lobby
    woken: list[Session] = field(default_factory=list)

    def wake(self, session: Session) -> None:
        self.woken.append(session)

    def say(self, *, key: str = KEY, **fields: Any) -> None:
        """What the API server would tell of the session now."""
        known = self.directory.get(key) or Session(key=key, model="smol")
        self.directory.put(replace(known, **fields))

    def ready(self) -> None:
        self.say(endpoint=self.played.url, ready=True, reason="Serving", message="answers")

    def paused(self, **fields: Any) -> None:
        words = {"reason": "WaitingForRoom", "message": "needs 12 slices"}
        self.say(ready=False, **(words | fields))

    def metric(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"sojourn_gateway_{name}") or 0.0

    async def until(self, true: Callable[[], Any], what: str) -> None:
        """Wait for what another task makes true."""
        async with asyncio.timeout(SECONDS):
            while not true():  # noqa: ASYNC110 - the gateway has no events for tests
                await asyncio.sleep(0.005)
        assert true(), what


@asynccontextmanager
async def fronting(**settings: Any) -> AsyncIterator[Front]:
    directory, metrics, played = Directory(), Metrics(), Played()
    chosen = replace(Settings(hold_seconds=30, splice_seconds=30), **settings)
    lobby = Lobby(most=chosen.most_held, most_per_session=chosen.most_held_per_session)
    await played.start()
    async with (
        http_client() as to_sessions,
        aiohttp.ClientSession() as client,
    ):
        front = Front("", client, directory, played, metrics, lobby)
        upstream = Upstream(to_sessions, directory, front, lobby, metrics)
        app = App(chosen, directory, upstream, metrics)
        runner = web.AppRunner(
            app.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        front.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        front.directory.filled = True
        front.ready()
        try:
            yield front
        finally:
            await runner.cleanup()
            await played.stop()


class GatewayProcess:
    """`python -m sojourn_gateway` on a free port."""

    def __init__(self, log: Path, flags: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._log = log
        path = os.pathsep.join(str(ROOT / part) for part in ("crds", "runtime"))
        command = [
            *(sys.executable, "-W", "error", "-m", "sojourn_gateway", "--host=127.0.0.1"),
            *("--port=0", "--linger-seconds=0", *flags),
        ]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": path, **env}, stdout=output, stderr=output
            )

    def text(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port()}"

    def _port(self) -> str:
        found = re.findall(r"listening on port (\d+)", self.text())
        return str(found[-1]) if found else ""

    def until_listening(self) -> None:
        self.until(self._port, "listening")

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Wait for what another process makes true."""
        end = time.monotonic() + SECONDS
        while not true():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, f"not {what}: {self.text()}"
            time.sleep(0.01)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path) as answer:  # noqa: S310 - our own address
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metric(self, name: str) -> float:
        """One series; 0 before it is there."""
        text = self.get("/metrics")[1].decode()
        found = re.findall(rf"^sojourn_gateway_{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[0]) if found else 0.0

    def models(self) -> list[str]:
        return [one["id"] for one in json.loads(self.get("/v1/models")[1])["data"]]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)
