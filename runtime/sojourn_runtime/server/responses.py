"""The Responses API: create, follow, attach again, cancel, delete.

Reads and writes HTTP. Bodies are read in `turns`, what a response is and how it ends is kept by
`book`, its events are derived in `events`.
"""

from collections.abc import Iterable
from contextlib import aclosing

from aiohttp import web
from sojourn_api import names

from sojourn_runtime.context.conversation import (
    Item,
    Response,
)
from sojourn_runtime.protocol import Refused
from sojourn_runtime.server import events
from sojourn_runtime.server.bodies import IN_PROGRESS, QUEUED, ended_body, page, running_body
from sojourn_runtime.server.book import Book, splitter
from sojourn_runtime.server.calls import check_grammar, closed_error, read_batches, refusal
from sojourn_runtime.server.errors import (
    Json,
    invalid,
    not_found,
)
from sojourn_runtime.server.fields import Fields, parse_object
from sojourn_runtime.server.port import Session
from sojourn_runtime.server.query import Query
from sojourn_runtime.server.stream import EventStream, encode_event
from sojourn_runtime.server.turns import Turns
from sojourn_runtime.stream import LEAD, Stream, StreamClosed


class Responses:
    """The handlers; one object per server."""

    def __init__(self, session: Session, book: Book) -> None:
        self._session = session
        self._book = book
        self._turns = Turns(session, book)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/responses", self.create),
            web.post("/v1/responses/input_tokens", self.count),
            web.get("/v1/responses/{id}", self.retrieve),
            web.delete("/v1/responses/{id}", self.delete),
            web.post("/v1/responses/{id}/cancel", self.cancel),
            web.get("/v1/responses/{id}/input_items", self.input_items),
        ]

    async def create(self, http: web.Request) -> web.StreamResponse:
        plan = self._turns.plan(Fields(parse_object(await http.read())))
        grammar = plan.request.params.grammar
        await check_grammar(self._session, grammar, param="text.format")
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

    async def count(self, http: web.Request) -> web.Response:
        """How long a prompt would be."""
        tokens = self._turns.count(Fields(parse_object(await http.read())))
        return web.json_response({"object": "response.input_tokens", "input_tokens": tokens})

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
            ended = await self._book.ended(response.id, self._book.follower(response.id))
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
        running = stream if response.ending is None else None
        past = (
            [] if running is not None else list(events.replay(response, self._book.parts(response)))
        )
        if past and after > past[-1].sequence:
            message = (
                f"'starting_after' is {after}, and the last event of this response is"
                f" {past[-1].sequence}."
            )
            raise invalid(message, param="starting_after")
        out = EventStream(http)
        follower = self._book.follower(response.id)

        async def send(found: Iterable[events.Event]) -> None:
            await out.send(
                encode_event(event.body(), name=event.kind)
                for event in found
                if event.sequence > after
            )

        try:
            if running is not None:
                await send(events.opening(response))
                await self._follow(out, response, running, after=after)
                response = await self._book.ended(response.id, follower)
                await send(events.closing(response, self._book.said(response)))
            else:
                await send(past)
        except StreamClosed:
            await out.comment(names.STREAM_PAUSED)
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
