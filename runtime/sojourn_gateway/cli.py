"""The command `sojourn-gateway`: puts the parts together, runs until SIGTERM, ends in order."""

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
from aiohttp import web
from sojourn_api.access import NotInPodError, in_cluster

from sojourn_gateway.app import App
from sojourn_gateway.directory import Directory
from sojourn_gateway.file import FileError, FileSource
from sojourn_gateway.kube import Kube
from sojourn_gateway.lobby import Lobby
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.settings import Settings, parse
from sojourn_gateway.upstream import Upstream, http_client
from sojourn_gateway.watch import Watch

log = logging.getLogger("sojourn_gateway")

CONFIGURATION: Final = 2
"""Exit code for what another try cannot change."""
AT_ONCE: Final = 0.001
"""Seconds; aiohttp takes 0 for no end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    settings = parse(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # It shows lines of requests that it cannot read, among them keys; what we fail on, we log.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    try:
        asyncio.run(_serve(settings))
    except (FileError, NotInPodError, OSError) as error:
        log.error("cannot start: %s", error)  # noqa: TRY400 - the text says it
        return CONFIGURATION
    return 0


async def _serve(settings: Settings) -> None:
    """Until SIGTERM or SIGINT; an error of the source of sessions ends the process."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    directory, metrics = Directory(), Metrics()
    async with AsyncExitStack() as stack:
        to_api = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        source = _source(settings, to_api, directory, metrics)
        to_sessions = await stack.enter_async_context(http_client())
        lobby = Lobby(most=settings.most_held, most_per_session=settings.most_held_per_session)
        metrics.gauge("held", "Requests held for their session.", lambda: lobby.held)
        metrics.gauge("sessions", "Sessions known.", lambda: len(directory.sessions))
        upstream = Upstream(to_sessions, directory, source, lobby, metrics)
        app = App(settings, directory, upstream, metrics)
        await _until(ended, source.run(), app, settings)


def _source(
    settings: Settings, http: aiohttp.ClientSession, directory: Directory, metrics: Metrics
) -> Watch | FileSource:
    if settings.file is not None:
        source = FileSource(settings.file, http, directory, metrics)
        source.read()  # at the start a file that is wrong is an error
        return source
    return Watch(Kube(in_cluster(), http), directory, metrics)


async def _until(
    ended: asyncio.Event, following: Coroutine[Any, Any, None], app: App, settings: Settings
) -> None:
    runner = web.AppRunner(
        app.application(),
        access_log=None,
        # a client that goes away ends its request at the session, at once
        handler_cancellation=True,
        shutdown_timeout=max(settings.drain_seconds, AT_ONCE),
    )
    source = asyncio.ensure_future(following)
    signalled = asyncio.ensure_future(ended.wait())
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host or None, settings.port)
        await site.start()
        log.info("listening on port %d", runner.addresses[0][1])
        await asyncio.wait({source, signalled}, return_when=asyncio.FIRST_COMPLETED)
        app.ending = True
        if not source.done():
            await asyncio.sleep(settings.linger_seconds)  # until nobody sends new clients here
    finally:
        await runner.cleanup()
        source.cancel()
        signalled.cancel()
        await asyncio.gather(source, signalled, return_exceptions=True)
    if not source.cancelled():
        source.result()
