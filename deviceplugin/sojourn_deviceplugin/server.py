"""One resource's gRPC server on its own socket; the answers are `core`'s.

No NVML and no API server behind any of these calls.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2_grpc as rpc
from sojourn_deviceplugin.core import AllocationError, Node
from sojourn_deviceplugin.metrics import Metrics

log = logging.getLogger(__name__)

THREADS: Final = 6
"""A stream holds one for its life, and a kubelet that comes back opens a second before the first
ends; the others answer calls."""


OPTIONS: Final = pb.DevicePluginOptions(get_preferred_allocation_available=True)
"""Said twice, at registration and when asked; a kubelet heeds the second (seen in 1.34)."""


class Service(rpc.DevicePluginServicer):
    """The five calls for one resource."""

    def __init__(self, node: Node, resource: str, metrics: Metrics) -> None:
        self._node = node
        self._resource = resource
        self._metrics = metrics
        self.stopping = threading.Event()

    def GetDevicePluginOptions(  # noqa: N802
        self,
        request: pb.Empty,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.DevicePluginOptions:
        return OPTIONS

    def ListAndWatch(  # noqa: N802
        self,
        request: pb.Empty,  # noqa: ARG002
        context: grpc.ServicerContext,
    ) -> Iterator[pb.ListAndWatchResponse]:
        def ending() -> bool:
            return self.stopping.is_set() or not context.is_active()

        context.add_callback(self._node.lists.wake)
        seen = 0
        while not ending():
            version, message = self._node.lists.wait(self._resource, after=seen, unless=ending)
            if version != seen:
                seen = version
                yield message

    def GetPreferredAllocation(  # noqa: N802
        self,
        request: pb.PreferredAllocationRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.PreferredAllocationResponse:
        """All slices of a GPU are alike; the lowest are taken, so that withdrawn ones stay free."""
        response = pb.PreferredAllocationResponse()
        refused = self._node.unlisted(self._resource)
        for wish in request.container_requests:
            must = list(wish.must_include_deviceIDs)
            rest = sorted(set(wish.available_deviceIDs) - set(must), key=_number)
            rest.sort(key=refused.__contains__)  # last; as many as are wished for must be named
            chosen = (must + rest)[: wish.allocation_size]
            response.container_responses.add(deviceIDs=chosen)
        return response

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        start = time.perf_counter()
        try:
            answers = [
                self._node.allocate(self._resource, wish.devices_ids)
                for wish in request.container_requests
            ]
        except AllocationError as error:
            self._metrics.allocated(self._resource, "refused", time.perf_counter() - start)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._metrics.allocated(self._resource, "granted", time.perf_counter() - start)
        return pb.AllocateResponse(container_responses=answers)

    def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def _number(device: str) -> tuple[int, str]:
    tail = device.rpartition("-")[2]
    return (int(tail) if tail.isdecimal() else -1, device)


class SocketError(Exception):
    """The socket cannot be served; the text names its path."""


class Endpoint:
    """A running server for one resource."""

    def __init__(self, node: Node, resource: str, folder: Path, metrics: Metrics) -> None:
        self.resource = resource
        # A name of its own for each server: gRPC removes a server's socket some time after it has
        # stopped, which must not hit the one that came after.
        short = resource.rpartition("/")[2]
        if not folder.is_dir():
            raise SocketError(f"{folder}: no such folder; is kubeletDir right, and mounted?")
        self.path = folder / f"sojourn-{short}.{secrets.token_hex(3)}.sock"
        self._service = Service(node, resource, metrics)
        self._node = node
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS, thread_name_prefix=short),
            options=[("grpc.so_reuseport", 0)],
        )
        rpc.add_DevicePluginServicer_to_server(self._service, self._server)
        try:
            for stale in folder.glob(f"sojourn-{short}.*sock"):
                stale.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{self.path}")
            self._server.start()
            self._inode = self.path.stat().st_ino
        except (OSError, RuntimeError) as error:
            # Without the part that is new each time: a failure that lasts is logged once.
            path = folder / f"sojourn-{short}.sock"
            text = str(error).replace(self.path.name, path.name)
            raise SocketError(
                f"{path}: cannot be served: {text} (is the kubelet's folder writable, the path "
                "below 107 characters?)"
            ) from error

    @property
    def alive(self) -> bool:
        """Whether the kubelet can still reach it: it deletes all sockets when it starts."""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def stop(self) -> None:
        """End streams and calls, and wait for that; the socket goes with the server."""
        self.abandon().wait()

    def abandon(self) -> threading.Event:
        """The same without the wait; the event is set when it is done."""
        self._service.stopping.set()
        self._node.lists.wake()
        return self._server.stop(grace=0.2)
