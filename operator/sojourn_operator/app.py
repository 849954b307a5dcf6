"""Wires the operator together: kopf's watches feed the cache, the loop and the Lease do the rest.

Nothing is decided here.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable
from typing import Final

import kopf

from sojourn_operator.act import api
from sojourn_operator.config import Config
from sojourn_operator.leader import Leader
from sojourn_operator.loop import Bell, Loop
from sojourn_operator.probes import Probes
from sojourn_operator.seen import heartbeats, others, watching
from sojourn_operator.seen.cache import Cache
from sojourn_operator.seen.poll import Poller

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
        watching.bypass_queues(self._cache)
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
            misses=config.silent_polls,
            leads=self._leader.leads,
            wake=self._bell.ring,
        )
        self._others = others.lookout(
            api.Api(client), leads=self._leader.leads, wake=self._bell.ring
        )
        self._heartbeats = heartbeats.lookout(
            api.Api(client),
            namespace=config.lease.namespace,
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
            others=self._others.found,
            silent=self._heartbeats.found,
        )

    def start(self) -> None:
        self._loop.start()
        self._poller.start()
        self._others.start()
        self._heartbeats.start()
        self._leader.start()
        self._watches.start()

    def stop(self) -> None:
        """Nothing is decided any more, then another may lead, then the watches end."""
        broken = not self._watches.is_alive()
        self._loop.stop()
        self._leader.stop(give_back=not self._loop.alive())
        self._poller.stop()
        self._others.stop()
        self._heartbeats.stop()
        self._stop_watching.set()
        self._watches.join(timeout=EXIT_SECONDS)
        if broken:
            raise WatchError("kopf's watches ended, see the log above; restart the operator")

    def _watch(self) -> None:
        # Read first, then watch: both at once would halve each other's speed, and kopf's is less.
        while not self._cache.synced.wait(timeout=1.0):
            if self._stop_watching.is_set():
                return
        try:
            asyncio.run(
                kopf.operator(
                    registry=watching.registry(self._cache),
                    settings=watching.settings(self._cache),
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
            "others": self._others.alive(),
            "heartbeats": self._heartbeats.alive(),
        }
        ended = [name for name, lives in alive.items() if not lives]
        return f"threads that ended: {', '.join(ended)}" if ended else ""

    def unready(self) -> str:
        """A standby is ready too, or a rollout of two replicas would never end."""
        if not self._cache.synced.is_set():
            return "the cluster was not read yet"
        if unheard := self._cache.unheard():
            return (
                f"the watches of {', '.join(unheard)} do not tell what a list found: see the log "
                "for what keeps them from the API server (its name in the DNS, a proxy)"
            )
        return self._loop.trouble()
