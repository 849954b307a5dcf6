"""Keeps every resource registered with the kubelet, over its restarts.

A kubelet that starts deletes all sockets in its folder and makes a new kubelet.sock, which is how a
restart is seen. Serves before it registers, since the kubelet calls back meanwhile.
"""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2_grpc as rpc
from sojourn_deviceplugin.core import Node
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.rpc_error import details
from sojourn_deviceplugin.server import OPTIONS, Endpoint, SocketError

log = logging.getLogger(__name__)

API_VERSION: Final = "v1beta1"
LOOK_SECONDS: Final = 0.1
"""Looking at an inode costs 2 us; the limit for being back is a second."""
RETRY_SECONDS: Final = 0.2
AT_ONCE: Final = 8
PATIENCE_SECONDS: Final = 5
"""How long NVML may take to say how known GPUs are, before they are registered as unhealthy."""
SYNC_SECONDS: Final = 20.0
"""How long a kubelet may take after its start until it lists the pods that run: it hears of them
from the API server."""
CALL_SECONDS: Final = 10
"""The kubelet dials back within its own 10 s."""

Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """Tells one kubelet.sock from the next; inode numbers alone are used again."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_ctime_ns)


def age(path: Path) -> float:
    """Seconds since a socket was made; a clock that was set back makes it new."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


class Registrar(threading.Thread):
    """Serves and registers all resources of the node until stopped."""

    def __init__(self, node: Node, metrics: Metrics) -> None:
        super().__init__(name="registrar", daemon=True)
        self._node = node
        self._metrics = metrics
        self._folder = node.config.plugin_dir
        self._kubelet = self._folder / "kubelet.sock"
        self._endpoints: dict[str, Endpoint] = {}
        self._registered: dict[str, Identity] = {}
        self._seen: Identity | None = None
        self._seen_at = float("-inf")
        self._meet(identity(self._kubelet))  # before anybody asks it who holds what
        self._retry: dict[str, float] = {}
        self._last_error: dict[str, str] = {}
        self._first = time.monotonic() + PATIENCE_SECONDS
        self._busy: set[str] = set()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="register")
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            self.look()
            self._end.wait(LOOK_SECONDS)
        self._pool.shutdown(cancel_futures=True)
        for endpoint in self._endpoints.values():
            endpoint.stop()

    def stop(self) -> None:
        self._end.set()

    @property
    def complete(self) -> bool:
        """Whether the kubelet that runs now knows all our resources."""
        now = identity(self._kubelet)
        return now is not None and all(
            self._registered.get(resource) == now for resource in self._node.lists.resources()
        )

    @property
    def kubelet_is_new(self) -> bool:
        """Whether the kubelet has started so lately that it may not list all its pods yet."""
        return time.monotonic() - self._seen_at < SYNC_SECONDS

    def _meet(self, kubelet: Identity | None) -> None:
        """Notice a kubelet that has just started, before it is told of anything that is free."""
        if kubelet is None or kubelet == self._seen:
            return
        self._seen, self._seen_at = kubelet, time.monotonic() - age(self._kubelet)
        self._node.kubelet_restarted()

    def look(self) -> None:
        """Bring servers and registrations to what they should be; cheap when they are.

        Each resource is served apart, so that one whose call hangs keeps no other waiting.
        """
        if not self._node.judged and time.monotonic() < self._first:
            return  # a restart of ours shall not look like a failure of all GPUs
        kubelet = identity(self._kubelet)
        self._meet(kubelet)
        for resource in self._node.lists.resources():
            endpoint = self._endpoints.get(resource)
            serving = endpoint is not None and endpoint.alive
            registered = kubelet is None or self._registered.get(resource) == kubelet
            late = time.monotonic() >= self._retry.get(resource, 0)
            if late and resource not in self._busy and not (serving and registered):
                self._busy.add(resource)
                self._pool.submit(self._bring, resource, kubelet)

    def _bring(self, resource: str, kubelet: Identity | None) -> None:
        try:
            endpoint = self._serve(resource)
            if kubelet is not None:
                self._register(endpoint)
                self._registered[resource] = kubelet
                self._last_error.pop(resource, None)
        except (SocketError, grpc.RpcError) as error:
            self._failed(resource, error)
        finally:
            self._busy.discard(resource)

    def _serve(self, resource: str) -> Endpoint:
        endpoint = self._endpoints.get(resource)
        if endpoint is not None and endpoint.alive:
            return endpoint
        if endpoint is not None:
            self._registered.pop(resource, None)
            endpoint.abandon()  # the kubelet waits for its successor
        endpoint = Endpoint(self._node, resource, self._folder, self._metrics)
        self._endpoints[resource] = endpoint
        return endpoint

    def _register(self, endpoint: Endpoint) -> None:
        with grpc.insecure_channel(f"unix:{self._kubelet}") as channel:
            rpc.RegistrationStub(channel).Register(
                pb.RegisterRequest(
                    version=API_VERSION,
                    endpoint=endpoint.path.name,
                    resource_name=endpoint.resource,
                    options=OPTIONS,
                ),
                timeout=CALL_SECONDS,
            )
        self._metrics.registered(endpoint.resource)
        log.info("registered", extra={"resource": endpoint.resource})

    def _failed(self, resource: str, error: Exception) -> None:
        self._retry[resource] = time.monotonic() + RETRY_SECONDS
        text = details(error)
        if self._last_error.get(resource) != text:
            self._last_error[resource] = text
            log.warning("cannot register", extra={"resource": resource, "error": text})
