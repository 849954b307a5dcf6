"""A session's Service is made once, ahead of its first start, and looked for at later ones."""

from dataclasses import replace
from typing import Any

import pytest
from sojourn_api.objects import ObjectMeta, Session, SessionSpec, SessionStatus
from sojourn_operator.act.addresses import Addresses
from sojourn_operator.act.api import Api, ApiError, ExistsError, NotFoundError
from sojourn_operator.kinds import Kind

CHAT = Session(
    meta=ObjectMeta("chat", "team", uid="uid-1", generation=1, created="2026-01-01T00:00:00Z"),
    spec=SessionSpec(model="smollm2", tier="silver"),
)
STARTED = replace(CHAT, status=SessionStatus(epoch=1))


class Server(Api):
    """Services by name, and what was asked for; `refusal` is what a create meets."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.services: dict[str, dict[str, Any]] = {}
        self.refusal: ApiError | None = None

    def create(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append("create")
        name = body["metadata"]["name"]
        if self.refusal is not None:
            raise self.refusal
        if name in self.services:
            raise ExistsError(kind.name, status=409, message="it exists")
        self.services[name] = body
        return body

    def get(self, kind: Kind, *, name: str, namespace: str = "") -> dict[str, Any]:
        self.asked.append("get")
        if name not in self.services:
            raise NotFoundError(f"{kind.name} {namespace}/{name}", status=404, message="not found")
        return self.services[name]


def test_what_was_made_early_is_not_asked_for_again() -> None:
    server = Server()
    addresses = Addresses(server, headless=False)
    addresses.create_early(CHAT)
    addresses.create_early(CHAT)
    assert addresses.ensure(STARTED)
    assert server.asked == ["create"]


def test_a_service_has_an_address_of_its_own_unless_it_shall_be_headless() -> None:
    plain, headless = Server(), Server()
    Addresses(plain, headless=False).create_early(CHAT)
    Addresses(headless, headless=True).create_early(CHAT)
    both = [server.services["chat"]["spec"] for server in (plain, headless)]
    assert [spec.pop("clusterIP", None) for spec in both] == [None, "None"]
    assert both[0] == both[1]


def test_another_replica_finds_what_was_made_early() -> None:
    server = Server()
    Addresses(server, headless=False).create_early(CHAT)
    assert Addresses(server, headless=False).ensure(STARTED)
    assert server.asked == ["create", "create", "get"]


def test_a_strangers_service_is_found_out_at_the_start() -> None:
    server = Server()
    server.services["chat"] = {"metadata": {"name": "chat", "uid": "other"}}
    addresses = Addresses(server, headless=False)
    addresses.create_early(CHAT)
    assert not addresses.ensure(STARTED)


def test_a_refused_service_is_told_at_the_start() -> None:
    server = Server()
    server.refusal = ApiError("POST Service", status=403, message="exceeded quota")
    addresses = Addresses(server, headless=False)
    addresses.create_early(CHAT)
    with pytest.raises(ApiError, match="exceeded quota"):
        addresses.ensure(STARTED)


def test_a_busy_api_server_is_told_at_once() -> None:
    server = Server()
    server.refusal = ApiError("POST Service", status=429, message="slow down")
    with pytest.raises(ApiError, match="slow down"):
        Addresses(server, headless=False).create_early(CHAT)


def test_at_a_later_start_the_service_is_looked_for() -> None:
    server = Server()
    Addresses(server, headless=False).create_early(CHAT)
    again = replace(CHAT, status=SessionStatus(epoch=2))
    server.asked.clear()
    assert Addresses(server, headless=False).ensure(again)
    server.services.clear()
    assert Addresses(server, headless=False).ensure(again)
    assert server.asked == ["get", "get", "create"]
