"""The gateway's HTTP server: routes, bodies within bounds, errors in OpenAI's form, its own pages.

What a call is, is read in `calls`; how it gets to its session, in `upstream` and `answer`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from sojourn_api import names

from sojourn_gateway.answer import Answers
from sojourn_gateway.calls import Call, read_call
from sojourn_gateway.directory import Directory
from sojourn_gateway.errors import ApiError, failed, unknown
from sojourn_gateway.lobby import Account, Doorway, Memory
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.session import Session
from sojourn_gateway.settings import Settings
from sojourn_gateway.upstream import CutError, Upstream

log = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""nginx's number, for the metric only."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class App:
    """The handlers; one object per server."""

    def __init__(
        self, settings: Settings, directory: Directory, upstream: Upstream, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._upstream = upstream
        self._metrics = metrics
        self._answers = Answers(upstream, metrics, splice_seconds=settings.splice_seconds)
        self._memory = Memory(most=settings.bodies_bytes, most_per_body=settings.body_bytes)
        self._doorway = Doorway(most=settings.most_open)
        self.ending = False
        metrics.gauge("open", "Requests under way.", lambda: self._doorway.inside)
        metrics.gauge("body_bytes", "Bodies of requests in memory.", lambda: self._memory.used)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._boundary])
        app.on_response_prepare.append(_sign)
        app.router.add_routes(
            [
                web.get(names.PATH_HEALTH, self._health),
                web.get(names.PATH_READY, self._ready),
                web.get(names.PATH_METRICS, self._numbers),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{model:.+}", self._model),
                web.route("*", "/v1/{rest:.*}", self._call),
                web.route("*", "/{namespace}/{session}/v1/{rest:.*}", self._call),
            ]
        )
        return app

    # -- the boundary --

    @web.middleware
    async def _boundary(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every answer passes here: counted, and errors in OpenAI's form."""
        status = CLIENT_GONE
        try:
            response = await self._answer(request, handler)
            status = response.status
        finally:
            self._metrics.requests.labels(str(status)).inc()
        return response

    async def _answer(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(http)
        except ApiError as error:
            return _refused(error)
        except web.HTTPException as error:
            message = f"{http.method} {http.path} is not there ({error.reason})."
            return _refused(ApiError(message, status=error.status, code="not_found"))
        except ConnectionError:  # the client is gone
            raise
        except Exception:
            log.exception("%s of a client failed", http.method)
            return _refused(failed())

    async def _call(self, http: web.Request) -> web.StreamResponse:
        with self._doorway.passage():
            return await self._passed(http)

    async def _passed(self, http: web.Request) -> web.StreamResponse:
        with self._memory.account() as account:
            call = await self._read(http, account)
            answer = await self._upstream.open(call, hold_seconds=self._settings.hold_seconds)
            call = replace(call, body=b"")  # the session has it, and streams are long
        try:
            return await self._answers.give(http, call, answer)
        except ConnectionError:  # the client is gone
            raise
        except CutError as cut:
            log.warning("%r: the answer is not whole: %s", call, cut)
        except Exception:
            log.exception("%r: the answer is not whole", call)
        return _cut(http)

    async def _read(self, http: web.Request, account: Account) -> Call:
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                async for chunk in http.content.iter_any():
                    self._memory.take(account, len(chunk))
                    body += chunk
        except TimeoutError as error:
            message = "The request's body did not come in time."
            raise ApiError(message, status=408, code="request_timeout") from error
        except web.RequestPayloadError as error:
            message = "The request's body breaks off, or is not encoded as its headers say."
            raise ApiError(message, code="invalid_body") from error
        place = http.match_info
        key = f"{place['namespace']}/{place['session']}" if "session" in place else ""
        path = http.rel_url.raw_path
        return read_call(
            key=key,
            method=http.method,
            path="/" + path.split("/", 3)[3] if key else path,
            query=http.rel_url.raw_query_string,
            headers=tuple(http.headers.items()),
            body=bytes(body),
        )

    # -- what is answered here --

    async def _models(self, _: web.Request) -> web.Response:
        """Every session, by the name that clients send as `model`."""
        sessions = sorted(self._directory.sessions.values(), key=lambda one: one.key)
        return web.json_response({"object": "list", "data": [_shown(one) for one in sessions]})

    async def _model(self, http: web.Request) -> web.Response:
        key = http.match_info["model"]
        session = self._directory.get(key)
        if session is None:
            raise unknown(key)
        return web.json_response(_shown(session))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        why_not = "ending" if self.ending else "" if self._directory.filled else "no sessions read"
        return web.Response(text=f"{why_not or 'ok'}\n", status=503 if why_not else 200)

    async def _numbers(self, _: web.Request) -> web.Response:
        kind = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        return web.Response(body=self._metrics.render(), headers=kind)


def _shown(session: Session) -> dict[str, object]:
    return {
        "id": session.key,
        "object": "model",
        "created": session.created,
        "owned_by": "sojourn",
    }


def _refused(error: ApiError) -> web.Response:
    return web.Response(
        body=error.body(),
        status=error.status,
        headers={**error.headers, "Content-Type": "application/json"},
    )


def _cut(http: web.Request) -> web.StreamResponse:
    """The connection ends without the end of the answer: the client sees that it is not whole."""
    if http.transport is not None:
        http.transport.close()
    return web.Response(status=502)  # for the metric: nothing more goes to the client


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    """Versions of libraries are nobody's business."""
    response.headers["Server"] = "sojourn"
