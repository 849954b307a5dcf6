"""What objects besides sessions say is written until it is written, each for itself."""

from typing import Any

import pytest
from sojourn_api.names import PLUGIN_GONE, READY
from sojourn_operator.act.api import Api, ApiError
from sojourn_operator.act.events import Teller
from sojourn_operator.config import Config
from sojourn_operator.kinds import GPU_NODES, TIERS, Kind
from sojourn_operator.loop import Bell, Loop
from sojourn_operator.seen.cache import Cache
from sojourn_operator.upkeep import Upkeep

from tests.unit.operator.test_view import gpu_node, node, world
from tests.unit.pretend_session import session

LAST = "2026-01-01T00:00:00Z"
RAW = {
    "metadata": {"name": "node-a", "uid": "uid-a", "resourceVersion": "5", "generation": 1},
    "status": {},
}


class Server(Api):
    """Keeps what is applied; the kinds in `refused` cannot be written."""

    def __init__(self, *refused: Kind) -> None:
        self.refused = set(refused)
        self.applied: list[dict[str, Any]] = []

    def create(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        self._check(kind)
        return body

    def apply(self, kind: Kind, body: dict[str, Any], *, subresource: str = "") -> dict[str, Any]:
        self._check(kind)
        assert subresource == "status"
        self.applied.append(body)
        return {**RAW, **body, "metadata": {**RAW["metadata"], "resourceVersion": "6"}}

    def _check(self, kind: Kind) -> None:
        if kind in self.refused:
            raise ApiError(f"write {kind.name}", status=403, message="refused")


def said(server: Server) -> list[str]:
    (body,) = server.applied
    return [one["reason"] for one in body["status"]["conditions"] if one["type"] == READY]


def test_a_silent_node_whose_write_failed_is_told_with_the_next_try() -> None:
    server = Server(GPU_NODES)
    upkeep = Upkeep(server, cache=Cache(lambda: None), teller=Teller(server))
    parts = {"gpu_nodes": {"node-a": gpu_node("node-a")}, "nodes": {"node-a": node("node-a")}}
    seen = world(session(), silent={"node-a": LAST}, **parts)
    with pytest.raises(ApiError):
        upkeep.tell_silent(seen, "node-a")
    server.refused.clear()
    upkeep.tell_silent(seen, "node-a")
    assert said(server) == [PLUGIN_GONE]
    upkeep.tell_silent(seen, "node-a")
    assert len(server.applied) == 1, "once: what the plugin says after that stands"


def test_a_tier_that_cannot_be_created_silences_no_dead_node() -> None:
    server = Server(TIERS)
    cache = Cache(lambda: None)
    cache.gpu_nodes.offer(RAW)
    loop = Loop(
        server,
        cache=cache,
        bell=Bell(),
        leads=lambda: True,
        config=Config(),
        runtimes=dict,
        silent=lambda: {"gone": LAST, "node-a": LAST},
    )
    loop.run_once(1000.0)
    assert said(server) == ["NodeNotReady"]
