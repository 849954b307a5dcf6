"""What watches tell goes into the tables."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from kopf._cogs.clients.watching import Bookmark
from kopf._core.reactor import queueing
from sojourn_api.render import tier_to_raw
from sojourn_api.shipped import SHIPPED_TIERS
from sojourn_operator.kinds import TIERS
from sojourn_operator.seen.cache import Cache
from sojourn_operator.seen.watching import KopfError, check_known, take, without_queues


def tier(name: str, **meta: Any) -> dict[str, Any]:
    known = {"name": name, "uid": f"uid-{name}", "resourceVersion": "5", **meta}
    return {**tier_to_raw(SHIPPED_TIERS[0]), "metadata": known}


def test_events_come_and_go() -> None:
    cache = Cache(lambda: None)
    take(cache.tiers, {"type": None, "object": tier("listed")})
    take(cache.tiers, {"type": "ADDED", "object": tier("added")})
    assert set(cache.tiers.values()) == {"listed", "added"}
    take(cache.tiers, {"type": "DELETED", "object": tier("listed", resourceVersion="6")})
    assert set(cache.tiers.values()) == {"added"}


def test_an_event_that_cannot_be_used_stops_no_other() -> None:
    cache = Cache(lambda: None)
    take(cache.tiers, {"type": "ADDED", "object": {"kind": TIERS.name}})
    take(cache.tiers, {"type": "ADDED", "object": tier("bronze")})
    assert set(cache.tiers.values()) == {"bronze"}


def test_events_of_a_table_go_into_it_at_once_and_other_kinds_the_usual_way() -> None:
    cache = Cache(lambda: None)
    went, given = [], {}

    async def stream(*, resource: Any, **more: Any) -> AsyncIterator[Any]:
        given[resource.plural] = set(more)
        yield {"type": None, "object": tier("listed")}
        yield Bookmark.LISTED
        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
        yield {"type": "ADDED", "object": tier("added")}

    async def usual(*, resource: Any, **_: Any) -> None:
        went.append(resource.plural)

    tables = {(TIERS.group, TIERS.plural): cache.tiers}
    watcher = without_queues(tables, usual=usual, stream=stream)
    rest = {"namespace": None, "settings": None, "processor": None, "operator_paused": None}
    for group, plural in ((TIERS.group, TIERS.plural), ("", "namespaces")):
        resource = SimpleNamespace(group=group, plural=plural)
        asyncio.run(watcher(resource=resource, **rest))  # type: ignore[arg-type]
    assert set(cache.tiers.values()) == {"listed", "added"}
    assert went == ["namespaces"]
    assert given == {TIERS.plural: {"namespace", "settings", "operator_paused"}}


def test_a_kopf_that_is_another_inside_is_refused_by_name() -> None:
    check_known(queueing.watcher)

    async def other(*, resource: Any, consumer: Any) -> None: ...

    with pytest.raises(
        KopfError, match=r"kopf [\d.]+ starts its watches in another way \(consumer"
    ):
        check_known(other)
