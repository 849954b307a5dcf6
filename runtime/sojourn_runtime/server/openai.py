"""The stateless endpoints: models, chat completions, completions.

Bodies are read in `plans`, events are read by `calls`, answers are written by `chunks`. What
remembers earlier turns is in `responses`. A streamed answer that a pause cut can be taken up again
by its id, which OpenAI's API has not.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web
from sojourn_api import names

from sojourn_runtime.server.calls import Call, check_grammar, closed_error
from sojourn_runtime.server.chunks import Form, Writer
from sojourn_runtime.server.errors import Json, invalid, not_found
from sojourn_runtime.server.fields import Fields, parse_object
from sojourn_runtime.server.meta import form_of
from sojourn_runtime.server.metrics import Metrics
from sojourn_runtime.server.plans import Plan, read_chat, read_completion
from sojourn_runtime.server.port import Session
from sojourn_runtime.server.query import Query
from sojourn_runtime.server.stream import DONE, EventStream, encode_event
from sojourn_runtime.stream import StreamClosed


class OpenAi:
    """The handlers; one object per server."""

    def __init__(self, session: Session, metrics: Metrics) -> None:
        self._session = session
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            web.post("/v1/chat/completions", self.chat_completions),
            web.get("/v1/chat/completions/{id}", self.again),
            web.post("/v1/completions", self.completions),
            web.get("/v1/completions/{id}", self.again),
        ]

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != self._session.model_name:
            raise not_found("model", name, param="model", code="model_not_found")
        return web.json_response(self._model())

    def _model(self) -> dict[str, Json]:
        return {
            "id": self._session.model_name,
            "object": "model",
            "created": self._session.created,
            "owned_by": "sojourn",
            # vLLM's field, which benchmarks and clients read to learn the context's size
            "max_model_len": self._session.context_length,
        }

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        fields = Fields(parse_object(await request.read()))
        return await self._answer(request, read_chat(self._session, fields))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        fields = Fields(parse_object(await request.read()))
        return await self._answer(request, read_completion(self._session, fields))

    async def again(self, request: web.Request) -> web.StreamResponse:
        """The rest of a stream of one choice, behind token position `starting_after`."""
        query = Query(request.query)
        after = query.integer_or_none("starting_after", low=-1)
        if not query.flag("stream"):
            raise invalid("Only a stream can be taken up again: 'stream=true'.", param="stream")
        name = request.match_info["id"]
        stream = self._session.stream(f"{name}-0")
        form = None if stream is None else form_of(stream.request)
        if stream is None or form is None or form.id != name:
            raise not_found("running request", name, code="request_not_found")
        if form.choices > 1 or len(form.echoes) > 1:
            raise invalid("A stream of several choices cannot be taken up again.", param="id")
        with Call(self._session, self._metrics) as call:
            call.attach(stream, after=-1 if after is None else after)
            return await self._stream(request, form, call)

    async def _answer(self, request: web.Request, plan: Plan) -> web.StreamResponse:
        grammar = plan.submissions[0].request.params.grammar
        await check_grammar(self._session, grammar, param="response_format")
        with Call(self._session, self._metrics) as call:
            for submission in plan.submissions:
                call.submit(submission, whole=not plan.streamed, param=plan.param)
            if plan.streamed:
                return await self._stream(request, plan.form, call)
            return await self._whole(plan.form, call)

    async def _whole(self, form: Form, call: Call) -> web.Response:
        try:
            async with aclosing(call.batches()) as batches:
                async for _ in batches:
                    pass
        except StreamClosed as closed:
            raise closed_error(closed) from closed
        call.count()
        write = Writer(form, spell=self._session.tokenizer.token)
        choices = [write.whole(index, stream.events) for index, stream in enumerate(call.streams)]
        return web.json_response(form.whole(choices, usage=call.usage()))

    async def _stream(self, request: web.Request, form: Form, call: Call) -> web.StreamResponse:
        stream = EventStream(request)
        try:
            async with aclosing(self._frames(form, call)) as frames:
                async for frame in frames:
                    await stream.send(frame)
        except StreamClosed as closed:
            if str(closed) == "Pausing":
                await stream.comment(names.STREAM_PAUSED)
            else:
                await stream.send([encode_event(closed_error(closed).body())])
        await stream.close()
        return stream.response

    async def _frames(self, form: Form, call: Call) -> AsyncGenerator[list[bytes]]:
        """What to write after each batch; a comment after a silence."""
        write = Writer(form, spell=self._session.tokenizer.token)
        for index, event in call.passed():
            write.token(index, event)
        async with aclosing(call.batches()) as batches:
            async for batch in batches:
                if not batch:
                    yield [b": keep-alive\n\n"]
                yield [
                    encode_event(form.chunk([choice]))
                    for index, event in batch
                    for choice in write.token(index, event)
                ]
        call.count()
        tail: list[bytes] = []
        if form.usage_follows:
            tail.append(encode_event(form.chunk([], usage=call.usage())))
        yield [*tail, DONE]
