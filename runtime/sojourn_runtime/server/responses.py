"""The Responses API: create, follow, attach again, cancel, delete.

Reads and writes HTTP; what a response is and how it ends is kept by `book`, its events are derived
in `events`.
"""

import time
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from sojourn_runtime.context.conversation import (
    Item,
    Response,
    chat_messages,
    drop_oldest,
)
from sojourn_runtime.engine.request import Request
from sojourn_runtime.protocol import Refused
from sojourn_runtime.server import events
from sojourn_runtime.server.bodies import IN_PROGRESS, QUEUED, ended_body, page, running_body
from sojourn_runtime.server.book import Book, splitter
from sojourn_runtime.server.calls import closed_error, read_batches, refusal
from sojourn_runtime.server.errors import (
    Json,
    context_exceeded,
    invalid,
    not_found,
    unsupported,
)
from sojourn_runtime.server.fields import Fields, parse_object
from sojourn_runtime.server.messages import read_input, read_tools
from sojourn_runtime.server.meta import STREAMED, meta_text
from sojourn_runtime.server.params import (
    WITHOUT_EFFECT,
    fit,
    read_priority,
    read_sampling,
    read_text_format,
)
from sojourn_runtime.server.plans import check_model, new_id
from sojourn_runtime.server.port import Session
from sojourn_runtime.server.query import Query
from sojourn_runtime.server.stream import PAUSED, EventStream, encode_event
from sojourn_runtime.stream import LEAD, Stream, StreamClosed

ABSENT: Final = {
    "access_programs": "access programs",
    "background_options": "background options",
    "context_management": "context management other than 'truncation'",
    "image": "images",
    "prompt": "prompt templates",
}
ECHOED: Final = (
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "user",
)
"""Told back as they came."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A body that was read."""

    response: Response
    request: Request
    streamed: bool


class Responses:
    """The handlers; one object per server."""

    def __init__(self, session: Session, book: Book) -> None:
        self._session = session
        self._book = book

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/responses", self.create),
            web.get("/v1/responses/{id}", self.retrieve),
            web.delete("/v1/responses/{id}", self.delete),
            web.post("/v1/responses/{id}/cancel", self.cancel),
            web.get("/v1/responses/{id}/input_items", self.input_items),
        ]

    async def create(self, http: web.Request) -> web.StreamResponse:
        plan = self._read(Fields(parse_object(await http.read())))
        response = plan.response
        try:
            stream = self._book.begin(response, plan.request)
        except Refused as refused:
            raise refusal(refused, param="input") from refused
        if plan.streamed:
            return await self._events(http, response, stream, after=-1)
        if response.background:
            return web.json_response(running_body(response, status=QUEUED))
        return await self._wait(response, stream)

    async def retrieve(self, http: web.Request) -> web.StreamResponse:
        query = Query(http.query)
        streamed = query.flag("stream")
        after = query.integer_or_none("starting_after", low=-1)
        if after is not None and not streamed:
            message = "'starting_after' needs 'stream=true'."
            raise invalid(message, param="starting_after")
        response = self._book.response(http.match_info["id"])
        stream = self._session.stream(response.id)
        if streamed:
            return await self._events(http, response, stream, after=-1 if after is None else after)
        return web.json_response(self._body(response, stream))

    async def delete(self, http: web.Request) -> web.Response:
        name = http.match_info["id"]
        try:
            await self._book.delete(name)
        except StreamClosed as closed:
            raise closed_error(closed) from closed
        return web.json_response({"id": name, "object": "response", "deleted": True})

    async def cancel(self, http: web.Request) -> web.Response:
        response = self._book.response(http.match_info["id"])
        if not response.background:
            message = (
                "Only a background response can be cancelled;"
                " close the connection of this one instead."
            )
            raise invalid(message, code="not_background")
        try:
            response = await self._book.cancel(response.id)
        except StreamClosed as closed:
            raise closed_error(closed) from closed
        return web.json_response(self._body(response, None))

    async def input_items(self, http: web.Request) -> web.Response:
        response = self._book.response(http.match_info["id"])
        return item_page(http, response.items)

    # -- reading --

    def _read(self, fields: Fields) -> Plan:
        session = self._session
        check_model(fields, session)
        for name, what in ABSENT.items():
            if fields.raw(name) is not None:
                raise unsupported(what, param=name)
        _read_include(fields)
        text = fields.object_or_none("text")
        if text is not None:
            text.ignore(("verbosity",))
            read_text_format(text, "format")
            text.refuse_unknown()
        tools = read_tools(fields, nested=False)
        if tools and not session.tokenizer.knows_tools:
            raise unsupported("tools for this model: its chat template has none", param="tools")
        background = fields.flag("background", default=False)
        streamed = fields.flag("stream", default=False)
        if background and not fields.flag("store", default=True):
            raise invalid("'background' needs 'store'.", param="background")
        items = read_input(fields, "input", new_id=new_id)
        instructions = fields.text_or_none("instructions")
        previous, conversation, earlier = self._read_history(fields)
        truncate = fields.choice("truncation", ("disabled", "auto"), default="disabled") == "auto"
        wanted = fields.integer_or_none("max_output_tokens", low=1)
        prompt = self._prompt(
            (*earlier, *items), instructions=instructions, tools=tools, truncate=truncate
        )
        room = fit(
            prompt=len(prompt),
            wanted=wanted,
            limit=session.context_length,
            param="input",
            bound="max_output_tokens",
            clip=True,
        )
        params = read_sampling(fields, max_tokens=room, vocabulary=session.tokenizer.vocab_size)
        response = Response(
            id=new_id("resp"),
            created_at=int(time.time()),
            model=session.model_name,
            items=items,
            prompt_tokens=len(prompt),
            instructions=instructions,
            previous=previous,
            conversation=conversation,
            background=background,
            echo=_echo(fields),
        )
        request = Request(
            id=response.id,
            prompt=prompt,
            params=params,
            priority=read_priority(fields),
            background=background,
            conversation=conversation or response.id,
            meta=STREAMED if streamed or background else meta_text(None),
        )
        _read_stream_options(fields, streamed=streamed)
        fields.ignore(WITHOUT_EFFECT)
        fields.refuse_unknown()
        return Plan(response=response, request=request, streamed=streamed)

    def _read_history(self, fields: Fields) -> tuple[str | None, str | None, tuple[Item, ...]]:
        """The previous response, the conversation, and what was said in it."""
        previous = fields.text_or_none("previous_response_id")
        given = fields.raw("conversation")
        if isinstance(given, dict):
            conversation: str | None = Fields(given, path="conversation").text("id")
        else:
            conversation = fields.text_or_none("conversation")
        if previous is not None and conversation is not None:
            message = "'previous_response_id' and 'conversation' exclude each other."
            raise invalid(message, param="previous_response_id")
        if previous is not None:
            param = "previous_response_id"
            return previous, None, self._book.history(self._book.response(previous, param=param))
        if conversation is not None:
            items = self._book.conversation(conversation, param="conversation").items
            return None, conversation, items
        return None, None, ()

    def _prompt(
        self,
        items: tuple[Item, ...],
        *,
        instructions: str | None,
        tools: list[dict[str, Json]],
        truncate: bool,
    ) -> tuple[int, ...]:
        """Token ids of the whole input; the oldest items are left out if they must and may be."""
        limit = self._session.context_length
        while True:
            messages = chat_messages(items, instructions=instructions)
            try:
                prompt = tuple(self._session.tokenizer.encode_chat(messages, tools=tools))
            except ValueError as error:
                message = f"The model's chat template refuses this input: {error}."
                raise invalid(message, param="input") from error
            shorter = drop_oldest(items)
            if len(prompt) < limit or not truncate:
                return prompt
            if shorter is None:
                raise context_exceeded(prompt=len(prompt), wanted=0, limit=limit, param="input")
            items = shorter

    # -- answering --

    def _body(self, response: Response, stream: Stream | None) -> dict[str, Json]:
        if response.ending is not None:
            return ended_body(response, self._book.said(response))
        waits = response.background and stream is not None and not stream.started
        return running_body(response, status=QUEUED if waits else IN_PROGRESS)

    async def _wait(self, response: Response, stream: Stream) -> web.Response:
        """The whole answer at once. A client that goes away ends it."""
        reader = stream.reader(lead=None)
        try:
            ended = await self._book.ended(response.id)
        except StreamClosed as closed:
            raise closed_error(closed) from closed
        finally:
            reader.close()
            self._leave(response, stream)
        return web.json_response(self._body(ended, None))

    async def _events(
        self, http: web.Request, response: Response, stream: Stream | None, *, after: int
    ) -> web.StreamResponse:
        """The events behind number `after`: those that were, then those that come."""
        out = EventStream(http)

        async def send(found: Iterable[events.Event]) -> None:
            await out.send(
                encode_event(event.body(), name=event.kind)
                for event in found
                if event.sequence > after
            )

        try:
            if response.ending is None and stream is not None:
                await send(events.opening(response))
                await self._follow(out, response, stream, after=after)
                response = await self._book.ended(response.id)
                await send(events.closing(response, self._book.said(response)))
            else:
                await send(events.replay(response, self._book.parts(response)))
        except StreamClosed:
            await out.comment(PAUSED)
        await out.close()
        return out.response

    async def _follow(
        self, out: EventStream, response: Response, stream: Stream, *, after: int
    ) -> None:
        """The tokens' events until no more come; StreamClosed when the session is being paused."""
        position = events.position_after(response, after)
        split = splitter(response)
        for event in stream.events[: position + 1]:
            split.push(event.text)
        lead = None if response.background else LEAD
        reader = stream.reader(after=position, lead=lead)
        try:
            async with aclosing(read_batches([reader])) as batches:
                async for batch in batches:
                    if not batch:
                        await out.comment("keep-alive")
                    deltas = [
                        events.delta(
                            response,
                            position=event.position,
                            text=split.push(event.text, last=bool(event.finish)).text,
                        )
                        for _, event in batch
                    ]
                    await out.send(encode_event(one.body(), name=one.kind) for one in deltas)
        except StreamClosed as closed:
            if str(closed) == "Pausing":
                raise
        finally:
            reader.close()
            self._leave(response, stream)

    def _leave(self, response: Response, stream: Stream) -> None:
        """The last reader of a foreground response went: nobody waits for the rest."""
        if response.background or stream.done or stream.followed or self._session.pausing:
            return
        self._session.cancel(response.id)


def item_page(http: web.Request, items: tuple[Item, ...]) -> web.Response:
    """One page of items, by the query's `after`, `limit` and `order`."""
    query = Query(http.query)
    after = query.text_or_none("after")
    body = page(
        items,
        after=after,
        limit=query.integer_or_none("limit", low=1, high=100) or 20,
        newest_first=query.choice("order", ("asc", "desc"), default="desc") == "desc",
    )
    if body is None:
        raise not_found("item", after or "", param="after", code="item_not_found")
    return web.json_response(body)


def _echo(fields: Fields) -> dict[str, Json]:
    """The settings that a response tells back; each was checked where it is used."""
    echo: dict[str, Json] = {
        "temperature": _or(fields.raw("temperature"), 1.0),
        "top_p": _or(fields.raw("top_p"), 1.0),
        "max_output_tokens": fields.raw("max_output_tokens"),
        "truncation": _or(fields.raw("truncation"), "disabled"),
        "tools": _or(fields.raw("tools"), []),
        "tool_choice": _or(fields.raw("tool_choice"), "auto"),
        "parallel_tool_calls": fields.flag("parallel_tool_calls", default=True),
        "store": fields.flag("store", default=True),
        "metadata": dict(fields.metadata()),
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None, "summary": None},
    }
    fields.ignore(("reasoning",))
    for name in ECHOED:
        if fields.has(name):
            echo[name] = fields.raw(name)
    return echo


def _or(value: Json, default: Json) -> Json:
    return default if value is None else value


def _read_include(fields: Fields) -> None:
    wanted = fields.texts("include", most=32)
    if "message.output_text.logprobs" in wanted:
        raise unsupported("log probabilities of responses", param="include")
    if fields.integer("top_logprobs", low=0, high=20, default=0):
        raise unsupported("log probabilities of responses", param="top_logprobs")


def _read_stream_options(fields: Fields, *, streamed: bool) -> None:
    options = fields.object_or_none("stream_options")
    if options is None:
        return
    if not streamed:
        raise invalid("'stream_options' needs 'stream'.", param="stream_options")
    options.ignore(("include_obfuscation",))
    options.refuse_unknown()
