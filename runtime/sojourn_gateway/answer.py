"""Writes a session's answer to the client: as it comes, or spliced over pauses and moves.

A write waits while the client does not read, and nothing is read from the session meanwhile: a slow
client slows its own request down, as without a gateway.
"""

import asyncio
import json
import logging
import socket
import time
from contextlib import aclosing
from typing import Final

from aiohttp import web

from sojourn_gateway.calls import Call, passed
from sojourn_gateway.errors import ApiError
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.splice import END, Frames, SpliceError, Thread, thread_of
from sojourn_gateway.upstream import AGAIN_SECONDS, ERROR_BYTES, Answer, CutError, Upstream

log = logging.getLogger(__name__)

SOCKET_BYTES: Final = 32 * 1024
"""Buffers towards the client, kept as small as the runtime's own, so that a lag shows there."""
ALIVE_SECONDS: Final = 15.0
"""Below the 60 s after which common proxies cut a silent connection."""
ALIVE: Final = b": held while the session is paused or moves\n\n"
EVENTS: Final = "text/event-stream"
OK: Final = 200
OURS: Final = frozenset({"server", "date"})
"""Of an answer: made anew here."""


class Answers:
    """Carries answers out."""

    def __init__(self, upstream: Upstream, metrics: Metrics, *, splice_seconds: float) -> None:
        self._upstream = upstream
        self._metrics = metrics
        self._splice_seconds = splice_seconds

    async def give(self, http: web.Request, call: Call, answer: Answer) -> web.StreamResponse:
        """The whole answer of a call; CutError where it cannot be made whole."""
        out = web.StreamResponse(status=answer.response.status)
        out.headers.extend(passed(answer.response.headers.items(), ours=OURS))
        thread = thread_of(call) if answer.response.content_type == EVENTS else None
        _keep_small(http)
        async with answer:
            await out.prepare(http)
            if thread is None:
                await self._pipe(out, answer)
            else:
                await self._splice(out, call, answer, thread)
        await out.write_eof()
        return out

    async def _pipe(self, out: web.StreamResponse, answer: Answer) -> None:
        async with aclosing(answer.chunks()) as chunks:
            async for chunk in chunks:
                await out.write(chunk)

    async def _splice(
        self, out: web.StreamResponse, call: Call, answer: Answer, thread: Thread
    ) -> None:
        """One part after the other, until the stream ends."""
        seen, since = "", time.monotonic()
        while True:
            async with answer:
                cut = await self._follow(out, answer, thread)
            if thread.ended or not cut:
                return
            target = thread.cut()
            if target is None:
                raise self._cut("passed_on", "the stream cannot be taken up again")
            if target != seen:
                seen, since = target, time.monotonic()
            elif time.monotonic() - since > self._splice_seconds:
                raise self._cut("lost", "the stream goes on no more")
            else:
                await asyncio.sleep(AGAIN_SECONDS)  # it was cut again before anything came
            try:
                answer = await self._rest(out, call.again(target))
            except ApiError as error:
                self._metrics.splices.labels("lost").inc()
                await out.write(b"event: error\ndata: " + error.body() + END)
                return
            self._metrics.splices.labels("spliced").inc()

    def _cut(self, outcome: str, why: str) -> CutError:
        self._metrics.splices.labels(outcome).inc()
        return CutError(why)

    async def _follow(self, out: web.StreamResponse, answer: Answer, thread: Thread) -> bool:
        """What comes, in whole events; whether more would have come without a pause or crash."""
        frames = Frames()
        try:
            async with aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    data = b"".join(frame for frame in frames.feed(chunk) if thread.take(frame))
                    if data:
                        await out.write(data)
        except CutError as cut:
            log.info("a stream was cut: %s", cut)
            return True
        except SpliceError as error:
            raise self._cut("lost", str(error)) from error
        return thread.paused

    async def _rest(self, out: web.StreamResponse, call: Call) -> Answer:
        """The rest of a stream, once its session is back; ApiError if it does not come back, or
        does not know the stream. Signs of life go to the client meanwhile.
        """
        coming = asyncio.ensure_future(self._upstream.rest(call, hold_seconds=self._splice_seconds))
        try:
            while not (await asyncio.wait({coming}, timeout=ALIVE_SECONDS))[0]:
                await out.write(ALIVE)
        except BaseException:
            coming.cancel()
            coming.add_done_callback(_close_unread)
            raise
        answer = coming.result()
        if answer.response.status != OK:
            async with answer:
                raise await _refusal(answer)
        return answer


def _close_unread(coming: asyncio.Future[Answer]) -> None:
    """It came in the moment in which the client went."""
    if not coming.cancelled() and coming.exception() is None:
        coming.result().response.close()


async def _refusal(answer: Answer) -> ApiError:
    """A session's own error."""
    status = answer.response.status
    body = answer.begun or await answer.response.content.read(ERROR_BYTES)
    try:
        error = json.loads(body)["error"]
        return ApiError(str(error["message"]), status=status, code=str(error["code"]))
    except (ValueError, KeyError, TypeError):
        return ApiError(f"The stream could not be taken up again: {status}.", status=status)


def _keep_small(http: web.Request) -> None:
    transport = http.transport
    if transport is not None:
        transport.set_write_buffer_limits(high=SOCKET_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
