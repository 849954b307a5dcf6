"""Wires the operator together: kopf's watches feed the cache, the loop and the Lease do the rest.

kopf gives watches and nothing else: no finalizers, no annotations, no events of its own. Nothing is
decided here.
"""

import asyncio
import dataclasses
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import kopf

from sojourn_operator.act import api
from sojourn_operator.cache import Cache, Table
from sojourn_operator.config import Config
from sojourn_operator.leader import Leader
from sojourn_operator.loop import Bell, Loop
from sojourn_operator.poll import Poller
from sojourn_operator.probes import Probes

log = logging.getLogger(__name__)


EXIT_SECONDS: Final = 3.0
"""For kopf to end its watches; they hold nothing that must be kept."""


class WatchError(Exception):
    """The watches ended by themselves; only a restart of the process brings them back."""


def run(config: Config, *, host: str, port: int, identity: str | None) -> None:
    """Until SIGTERM or SIGINT; a clean end gives the Lease back."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    operator = Operator(config, identity=identity or default_identity(), on_end=ended.set)
    probes = Probes(host=host, port=port, healthy=operator.unhealthy, ready=operator.unready)
    probes.start()
    operator.start()
    ended.wait()
    try:
        operator.stop()
    finally:
        probes.stop()


def default_identity() -> str:
    """The pod's name, so that a restarted container goes on at once; else one of its own."""
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


class Operator:
    """All parts of one replica."""

    def __init__(self, config: Config, *, identity: str, on_end: Callable[[], None]) -> None:
        client = api.connect()
        self._on_end = on_end
        self._identity = identity
        self._stop_watching = threading.Event()
        # Not in the main thread: there kopf would take the signals, and take its time.
        self._watches = threading.Thread(target=self._watch, name="watches", daemon=True)
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

    def start(self) -> None:
        self._loop.start()
        self._poller.start()
        self._leader.start()
        self._watches.start()

    def stop(self) -> None:
        """Nothing is decided any more, then another may lead, then the watches end."""
        broken = not self._watches.is_alive()
        self._loop.stop()
        self._poller.stop()
        self._leader.stop()
        self._stop_watching.set()
        self._watches.join(timeout=EXIT_SECONDS)
        if broken:
            raise WatchError("kopf's watches ended, see the log above; restart the operator")

    def _watch(self) -> None:
        try:
            asyncio.run(
                kopf.operator(
                    registry=registry(self._cache),
                    settings=settings(self._cache),
                    standalone=True,
                    clusterwide=True,
                    # Else kopf asks for the user's name, which a container's uid need not have.
                    identity=self._identity,
                    stop_flag=self._stop_watching,
                )
            )
        finally:
            self._on_end()

    def unhealthy(self) -> str:
        """Why a restart would help."""
        alive = {
            "loop": self._loop.alive(),
            "Lease": self._leader.alive(),
            "poll": self._poller.alive(),
        }
        ended = [name for name, lives in alive.items() if not lives]
        return f"threads that ended: {', '.join(ended)}" if ended else ""

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
    inside = kopf.login_with_service_account(**kwargs)
    if inside is None:
        return kopf.login_with_kubeconfig(**kwargs)
    # kopf would ask the cluster's DNS, which the operator must outlive; the kubelet says this.
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    address = f"[{host}]" if ":" in host else host
    return dataclasses.replace(inside, server=f"https://{address}:{port}")


def settings(cache: Cache) -> kopf.OperatorSettings:
    """Watches only: nothing is written, and what is not ours is filtered by the API server."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.process.ultimate_exiting_timeout = None
    for table in cache.tables():
        if table.label_selector:
            found.watching.label_selectors[table.kind.plural] = table.label_selector
    return found
