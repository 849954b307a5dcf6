"""Opens a call at its session: now, or as soon as the session answers again.

A call is sent again only where it was certainly not carried out: nobody took the connection, the
runtime itself says that it is loading or pausing, or the call changes nothing.
"""

import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Protocol, Self

import aiohttp
from sojourn_api import names
from yarl import URL

from sojourn_gateway.calls import Call
from sojourn_gateway.decide import Forward, Hold, Refuse, decide
from sojourn_gateway.directory import Directory
from sojourn_gateway.errors import broken, unavailable
from sojourn_gateway.lobby import Lobby
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.session import Session

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 0.2
"""Between two tries at a session that counts as ready and does not answer: it begins to pause, and
the API server does not know yet."""
WAKE_SECONDS: Final = 5.0
"""A held request looks again at least so often, should a wake-up have failed."""
CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""Four of the runtime's signs of life on a stream: then its node is gone."""
UNAVAILABLE: Final = 503
READ_BYTES: Final = 32 * 1024
"""Read ahead from one session at most, here and in the kernel: seconds of text, so that a client's
lag shows there."""
ERROR_BYTES: Final = 64 * 1024
"""More than the body of a refusal has."""
KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""A peer that is gone is noticed after 30 s."""


class Waker(Protocol):
    """Who brings back a session that sleeps."""

    def wake(self, session: Session) -> None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An open answer of a session; `begun` is what of its body was read already."""

    response: aiohttp.ClientResponse
    begun: bytes = b""

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes, nothing read ahead of it; CutError where it breaks off.

        What goes wrong with those who take the chunks is not caught here.
        """
        if self.begun:
            yield self.begun
        try:
            async for chunk in self.response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise CutError(type(error).__name__) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Also in the middle: the session then learns that nobody reads."""
        self.response.close()


class CutError(Exception):
    """The session's connection broke in the middle of an answer."""


class Upstream:
    """The way to all sessions."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        directory: Directory,
        waker: Waker,
        lobby: Lobby,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._directory = directory
        self._waker = waker
        self._lobby = lobby
        self._metrics = metrics
        self._clock = clock

    async def open(self, call: Call, *, hold_seconds: float) -> Answer:
        """An answer with its body still to be read; ApiError when the session stays away."""
        if not self._directory.filled:
            raise unavailable("Starting", "The gateway has not read the list of sessions yet.")
        decision = decide(call, self._directory.get(call.key))
        if isinstance(decision, Forward):
            answer = await self._try(call, decision.session)
            if answer is not None:
                return answer
        if isinstance(decision, Refuse):
            raise decision.error
        with self._lobby.place(call.key), self._metrics.waited.time():
            return await self._held(call, hold_seconds=hold_seconds, open_stream=False)

    async def rest(self, call: Call, *, hold_seconds: float) -> Answer:
        """The same for the rest of a stream whose beginning the client has: it needs no place."""
        return await self._held(call, hold_seconds=hold_seconds, open_stream=True)

    async def _held(self, call: Call, *, hold_seconds: float, open_stream: bool) -> Answer:
        end = self._clock() + hold_seconds
        while True:
            session = self._directory.get(call.key)
            match decide(call, session, open_stream=open_stream):
                case Refuse(error):
                    raise error
                case Hold(session, wake):
                    words, pause = unavailable(session.reason, session.words), WAKE_SECONDS
                    if wake:
                        self._waker.wake(session)
                case Forward(session):
                    answer = await self._try(call, session)
                    if answer is not None:
                        return answer
                    silent = f"Session {call.key} counts as ready, but does not answer."
                    words, pause = unavailable("NotAnswering", silent), AGAIN_SECONDS
            left = end - self._clock()
            if left <= 0:
                raise words
            await self._directory.news(call.key, seconds=min(left, pause))

    async def _try(self, call: Call, session: Session) -> Answer | None:
        """None where the call is to be sent again later."""
        try:
            response = await self._send(call, session)
            refusal = b""
            if response.status == UNAVAILABLE:
                refusal = await response.content.read(ERROR_BYTES)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return None
        except (aiohttp.ClientError, TimeoutError) as error:
            if call.method == "GET":
                return None
            log.warning("%r: %s", call, type(error).__name__)
            raise broken(call.key, "the connection broke before an answer") from error
        if _asks_to_wait(refusal):
            response.close()
            return None
        return Answer(response, refusal)

    async def _send(self, call: Call, session: Session) -> aiohttp.ClientResponse:
        silence = SILENCE_SECONDS if call.streamed else None
        return await self._http.request(
            call.method,
            URL(session.endpoint + call.target, encoded=True),  # as the client wrote it
            headers=[*call.headers, ("Accept-Encoding", "identity")],
            data=call.body_for(session.model) or None,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=silence
            ),
        )


def _asks_to_wait(body: bytes) -> bool:
    """Whether a 503 is the runtime's own word that it did not carry the call out."""
    try:
        return json.loads(body)["error"]["code"] in names.NOT_NOW
    except (ValueError, KeyError, TypeError):
        return False


def http_client() -> aiohttp.ClientSession:
    """A connection per request, and a look at the name for each: none is found dead, or led to
    another session's pod, after its session has moved.

    The kernel asks after silent peers, or an answer from a lost node would be waited for for ever.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            force_close=True, limit=0, use_dns_cache=False, socket_factory=_socket
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BYTES,
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)  # else megabytes by itself
    for option, value in KEEPALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
