"""The Conversations API: lists of items that responses read and extend."""

import time
from typing import Final

from aiohttp import web

from sojourn_runtime.context.conversation import Conversation, Item, item_to_json
from sojourn_runtime.server.bodies import conversation_body
from sojourn_runtime.server.book import Book
from sojourn_runtime.server.errors import not_found
from sojourn_runtime.server.fields import Fields, parse_object
from sojourn_runtime.server.messages import read_items
from sojourn_runtime.server.plans import new_id
from sojourn_runtime.server.responses import item_page

MOST_ITEMS: Final = 20
"""Per request, as OpenAI bounds it."""


class Conversations:
    """The handlers; one object per server."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/conversations/{id}"
        return [
            web.post("/v1/conversations", self.create),
            web.get(one, self.retrieve),
            web.post(one, self.update),
            web.delete(one, self.delete),
            web.post(f"{one}/items", self.create_items),
            web.get(f"{one}/items", self.items),
            web.get(f"{one}/items/{{item}}", self.item),
            web.delete(f"{one}/items/{{item}}", self.delete_item),
        ]

    async def create(self, http: web.Request) -> web.Response:
        body = await http.read()
        fields = Fields(parse_object(body) if body.strip() else {})
        items: tuple[Item, ...] = ()
        if fields.has("items"):
            items = read_items(fields, "items", new_id=new_id, most=MOST_ITEMS)
        fields.ignore(("items",))
        metadata = fields.metadata()
        fields.refuse_unknown()
        conversation = Conversation(
            id=new_id("conv"), created_at=int(time.time()), metadata=metadata, items=items
        )
        self._book.keep(conversation)
        return web.json_response(conversation_body(conversation))

    async def retrieve(self, http: web.Request) -> web.Response:
        return web.json_response(conversation_body(self._find(http)))

    async def update(self, http: web.Request) -> web.Response:
        fields = Fields(parse_object(await http.read()))
        metadata = fields.metadata()
        fields.refuse_unknown()
        conversation = self._find(http).with_metadata(metadata)
        self._book.keep(conversation)
        return web.json_response(conversation_body(conversation))

    async def delete(self, http: web.Request) -> web.Response:
        name = self._find(http).id
        self._book.forget(name)
        return web.json_response({"id": name, "object": "conversation.deleted", "deleted": True})

    async def create_items(self, http: web.Request) -> web.Response:
        fields = Fields(parse_object(await http.read()))
        items = read_items(fields, "items", new_id=new_id, most=MOST_ITEMS)
        fields.refuse_unknown()
        self._book.keep(self._find(http).extended(items))
        return web.json_response(
            {
                "object": "list",
                "data": [item_to_json(item) for item in items],
                "first_id": items[0].id if items else "",
                "last_id": items[-1].id if items else "",
                "has_more": False,
            }
        )

    async def items(self, http: web.Request) -> web.Response:
        return item_page(http, self._find(http).items)

    async def item(self, http: web.Request) -> web.Response:
        return web.json_response(item_to_json(self._find_item(http)))

    async def delete_item(self, http: web.Request) -> web.Response:
        item = self._find_item(http)
        conversation = self._find(http).without(item.id)
        self._book.keep(conversation)
        return web.json_response(conversation_body(conversation))

    def _find(self, http: web.Request) -> Conversation:
        return self._book.conversation(http.match_info["id"])

    def _find_item(self, http: web.Request) -> Item:
        name = http.match_info["item"]
        for item in self._find(http).items:
            if item.id == name:
                return item
        raise not_found("item", name, code="item_not_found")
