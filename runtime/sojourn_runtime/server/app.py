"""The HTTP server of a session: routes, who may pass, what errors look like, start and stop.

It listens before the weights are loaded, so that probes see a living process and clients a reason
to wait. What the endpoints do is in their own modules.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.http import HttpProcessingError
from sojourn_api import names

from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.protocol import STALLED
from sojourn_runtime.server.auth import GUARDED, Guard
from sojourn_runtime.server.book import MOST_RESPONSES, Book
from sojourn_runtime.server.conversations import Conversations
from sojourn_runtime.server.errors import (
    ApiError,
    broken,
    store_failed,
    too_large,
    unavailable,
    unsupported,
)
from sojourn_runtime.server.metrics import CONTENT_TYPE, Metrics
from sojourn_runtime.server.openai import OpenAi
from sojourn_runtime.server.port import Session
from sojourn_runtime.server.responses import Responses
from sojourn_runtime.server.stream import STARTED

log = logging.getLogger(__name__)
http_log = logging.getLogger(f"{__name__}.http")
"""aiohttp's, which shows the lines of a request that it cannot read: API keys among them."""


def _without_lines(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.args = "a request cannot be read (%s)", (record.exc_info[1].code,)
        record.exc_info = None
    return True


http_log.addFilter(_without_lines)

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""Some ten times the text of a context of 128 Ki tokens."""
STOP_SECONDS: Final = 1.0
"""Handlers end by themselves once the session closed its streams, unless their client is dead.
"""
CLIENT_GONE: Final = 499
"""nginx's number, for the metric only."""

ABSENT: Final = {
    "assistants": "assistants API",
    "audio": "audio endpoints",
    "batches": "batch API",
    "containers": "containers",
    "embeddings": "embeddings",
    "evals": "evals",
    "files": "file storage",
    "fine_tuning": "fine-tuning",
    "images": "image endpoints",
    "moderations": "moderations",
    "organization": "organisation endpoints",
    "realtime": "realtime API",
    "threads": "assistants API",
    "uploads": "uploads",
    "vector_stores": "vector stores",
    "videos": "video endpoints",
}
"""Families of OpenAI's API, by the first part of their path."""
ABSENT_ROUTES: Final = {
    "/v1/chat/completions/{id}/messages": "stored chat completions; use /v1/responses",
    "/v1/responses/compact": "compaction",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOADING: Final = {
    "Loading": "The model is being loaded.",
    "Restoring": "The saved context is being restored.",
    "Pausing": "The session is being paused; it answers again after it resumed.",
}


class Server:
    """The server of one session; see `protocol` for who calls what."""

    def __init__(
        self,
        session: Session,
        *,
        api_key: str = "",
        max_body_bytes: int = MAX_BODY_BYTES,
        most_responses: int = MOST_RESPONSES,
    ) -> None:
        self._session = session
        self._guard = Guard(api_key)
        self._limit = max_body_bytes
        self.metrics = Metrics(
            session.gauges, model=session.model_name, hand_over=session.hand_over
        )
        self._book = Book(session, self.metrics, most_responses=most_responses)
        self._runner: web.AppRunner | None = None
        self._adopted = False

    async def start(self, *, host: str, port: int) -> None:
        """Listen; OSError when the address is taken."""
        runner = web.AppRunner(
            self._app(),
            access_log=None,
            logger=http_log,
            # a handler learns at once that its client is gone, not at its next write
            handler_cancellation=True,
            shutdown_timeout=STOP_SECONDS,
        )
        await runner.setup()
        self._runner = runner
        await web.TCPSite(runner, host, port).start()

    @property
    def port(self) -> int:
        """Where it listens, also when any free port was asked for."""
        if self._runner is None:
            raise RuntimeError("the server was not started")
        return int(self._runner.addresses[0][1])

    def adopt(self) -> None:
        """To be called once in the loop when the session is ready: follow what was restored."""
        self._book.adopt()
        self._adopted = True

    async def stop(self) -> None:
        """Stop listening, let open answers end, close."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._book.stop()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._boundary], client_max_size=self._limit)
        app.on_response_prepare.append(_sign)
        app.router.add_routes(
            [
                web.get(names.PATH_HEALTH, self._health),
                web.get(names.PATH_READY, self._ready),
                web.get(names.PATH_METRICS, self._metrics),
                web.get(names.PATH_STATUS, self._status),
                *OpenAi(self._session, self.metrics).routes(),
                *[web.route("*", path, _absent(what)) for path, what in ABSENT_ROUTES.items()],
                *Responses(self._session, self._book).routes(),
                *Conversations(self._book).routes(),
                *[
                    web.route("*", f"/v1/{family}{{rest:(/.*)?}}", _absent(what))
                    for family, what in ABSENT.items()
                ],
            ]
        )
        return app

    # -- the boundary --

    @web.middleware
    async def _boundary(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every answer passes here: admitted or not, counted, errors in OpenAI's form."""
        status = CLIENT_GONE
        try:
            response = await self._answer(request, handler)
            status = response.status
        finally:
            self.metrics.answered(route=_route(request), status=status)
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._admit(request)
            return await handler(request)
        except ConnectionError:
            raise
        except Exception as error:
            if STARTED in request:
                raise  # aiohttp cuts the connection: the client sees that the answer is not whole
            return _error(self._refusal(request, error))

    def _refusal(self, request: web.Request, error: Exception) -> ApiError:
        match error:
            case ApiError():
                return error
            case ContextError():
                log.error("%s %s failed: %s", request.method, request.path, error)
                return store_failed(error.reason)
            case web.HTTPRequestEntityTooLarge():
                return too_large(self._limit)
            case web.HTTPException():
                return _http_error(request, error)
        if reason := self._absent_for():  # what it needed went away while it ran
            return unavailable(reason.lower(), self._why(reason))
        log.error("%s %s failed", request.method, request.path, exc_info=error)
        return broken("The server failed on this request; its log says why.")

    def _admit(self, request: web.Request) -> None:
        self._guard.check(path=request.path, authorization=request.headers.get("Authorization"))
        reason = self._absent_for()
        if reason and request.path.startswith(GUARDED):
            raise unavailable(reason.lower(), self._why(reason))

    def _absent_for(self) -> str:
        """Why requests are not answered; empty when they are."""
        return self._session.ready or ("" if self._adopted else "Restoring")

    def _why(self, reason: str) -> str:
        if reason == STALLED:
            return f"The engine stands still: it waits for {self._session.stalled}."
        return LOADING.get(reason, "The session does not answer; its status says why.")

    # -- what is not OpenAI's --

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reason = self._absent_for()
        if not reason:
            return web.json_response({"ready": True})
        body = {"ready": False, "reason": reason, "message": self._why(reason)}
        return web.json_response(body, status=503)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self._session.status())


def _route(request: web.Request) -> str:
    """The route's pattern, never the path: ids would make a metric of each response."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"


def _error(error: ApiError) -> web.Response:
    return web.json_response(error.body(), status=error.status, headers=error.headers)


def _http_error(request: web.Request, error: web.HTTPException) -> ApiError:
    """What the router refuses: no such path or method."""
    message = f"{request.method} {request.path} is not there ({error.reason})."
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    code = "method_not_allowed" if headers else "not_found"
    return ApiError(message, status=error.status, code=code, headers=headers)


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    """Versions of libraries are nobody's business."""
    response.headers["Server"] = "sojourn"


def _absent(what: str) -> Handler:
    async def refuse(_: web.Request) -> web.StreamResponse:
        raise unsupported(what)

    return refuse
