"""Server-sent events: one HTTP answer that grows.

A write waits while the client's socket is full, which is what slows a slow reader's own request
down: buffers here are kept small on purpose. What the events say is not known here.
"""

import json
import socket
from collections.abc import Iterable
from typing import Final

from aiohttp import web

from sojourn_runtime.server.errors import Json

SOCKET_BYTES: Final = 32 * 1024
"""Buffer of kernel and transport for one stream, each: seconds of text, so that a lag shows."""
STARTED: Final = web.RequestKey("started", bool)
"""Key in a request whose answer has begun: no other can be sent, not even an error."""
DONE: Final = b"data: [DONE]\n\n"


def encode_event(data: Json, *, name: str | None = None) -> bytes:
    """One event; `name` is the `event:` line, which the Responses API has and chat has not."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


class EventStream:
    """An open answer. The headers go out with the first write."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                # nginx and the like would collect tokens otherwise
                "X-Accel-Buffering": "no",
            }
        )

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    async def send(self, frames: Iterable[bytes]) -> None:
        """Waits while the client does not read; ConnectionError when it is gone."""
        if not self._response.prepared:
            await self._prepare()
        data = b"".join(frames)
        if data:
            await self._response.write(data)

    async def comment(self, text: str) -> None:
        """A line that clients skip: keeps proxies awake, tells people who look."""
        await self.send([f": {text}\n\n".encode()])

    async def close(self) -> None:
        await self._response.write_eof()

    async def _prepare(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=SOCKET_BYTES)
            raw = transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self._request[STARTED] = True
        await self._response.prepare(self._request)
