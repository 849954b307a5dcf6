"""Wires the operator together: kopf's watches feed the cache, the loop and the Lease do the rest.

kopf gives watches and nothing else: no finalizers, no annotations, no events of its own. Nothing is
decided here.
"""

import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Mapping
from typing import Any

import kopf

from sojourn_operator.act import api
from sojourn_operator.cache import Cache, Table
from sojourn_operator.config import Config
from sojourn_operator.leader import Leader
from sojourn_operator.loop import Bell, Loop
from sojourn_operator.poll import Poller
from sojourn_operator.probes import Probes

log = logging.getLogger(__name__)


def run(config: Config, *, host: str, port: int, identity: str | None) -> None:
    """Until SIGTERM or SIGINT; a clean end gives the Lease back."""
    operator = Operator(config, identity=identity or default_identity())
    probes = Probes(host=host, port=port, healthy=operator.unhealthy, ready=operator.unready)
    probes.start()
    try:
        asyncio.run(operator.run())
    finally:
        probes.stop()


def default_identity() -> str:
    """The pod's name, so that a restarted container goes on at once; else one of its own."""
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


class Operator:
    """All parts of one replica."""

    def __init__(self, config: Config, *, identity: str) -> None:
        client = api.connect()
        self._bell = Bell()
        self._cache = Cache(self._bell.ring)
        self._leader = Leader(
            api.Api(client),
            name=config.lease.name,
            namespace=config.lease.namespace,
            identity=identity,
            on_change=self._bell.ring,
        )
        self._poller = Poller(
            self._cache,
            seconds=config.status_poll_seconds,
            leads=self._leader.leads,
            wake=self._bell.ring,
        )
        self._loop = Loop(
            api.Api(client, fence=self._leader),
            cache=self._cache,
            bell=self._bell,
            leads=self._leader.leads,
            config=config,
            runtimes=self._poller.runtimes,
        )

    async def run(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        self._loop.start()
        self._poller.start()
        self._leader.start()
        try:
            await kopf.operator(
                registry=registry(self._cache),
                settings=settings(self._cache),
                standalone=True,
                clusterwide=True,
                stop_flag=stop,
            )
        finally:
            await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._poller.stop()
        self._loop.stop()
        self._leader.stop()

    def unhealthy(self) -> str:
        """Why a restart would help."""
        return "" if self._loop.alive() else "the loop has ended"

    def unready(self) -> str:
        """A standby is ready too, or a rollout of two replicas would never end."""
        return "" if self._cache.synced.is_set() else "the cluster was not read yet"


def registry(cache: Cache) -> kopf.OperatorRegistry:
    """One watch for each table, each event into its table."""
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(_login)
    for table in cache.tables():
        kind = table.kind
        kopf.on.event(kind.group, kind.version, kind.plural, registry=found, id=kind.plural)(
            _feed(table)
        )
    return found


def _feed(table: Table[Any]) -> Any:
    async def seen(event: Mapping[str, Any], **_: object) -> None:
        if event["type"] == "DELETED":
            table.drop(event["object"])
        else:
            table.offer(event["object"])

    return seen


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def settings(cache: Cache) -> kopf.OperatorSettings:
    """Watches only: nothing is written, and what is not ours is filtered by the API server."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.process.ultimate_exiting_timeout = 5.0
    for table in cache.tables():
        if table.label_selector:
            found.watching.label_selectors[table.kind.plural] = table.label_selector
    return found
