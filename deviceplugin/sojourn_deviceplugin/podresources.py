"""Who holds which device, by the kubelet's pod-resources API; the only reader of its socket.

Tolerates the kubelet's rate limit and absence: a failed look changes nothing.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from sojourn_api import names

from sojourn_deviceplugin._proto import podresources_v1_pb2 as pb
from sojourn_deviceplugin._proto import podresources_v1_pb2_grpc as rpc
from sojourn_deviceplugin.ledger import Holder
from sojourn_deviceplugin.rpc_error import details

CALL_SECONDS: Final = 2.0


class PodResourcesError(Exception):
    """The kubelet did not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The kubelet's list, and when it was asked for (monotonic)."""

    held: dict[tuple[Holder, int], frozenset[str]]
    asked_ns: int


class PodResources:
    """A connection that survives kubelet restarts (gRPC dials the path again)."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(
            f"unix:{socket}",
            options=[
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.initial_reconnect_backoff_ms", 100),
            ],
        )
        self._stub = rpc.PodResourcesListerStub(self._channel)

    def listing(self) -> Listing:
        """All containers that hold our devices."""
        asked = time.monotonic_ns()
        try:
            response = self._stub.List(pb.ListPodResourcesRequest(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise PodResourcesError(f"pod-resources: {details(error)}") from error
        return Listing(held=held(response.pod_resources), asked_ns=asked)

    def claimed_elsewhere(self) -> frozenset[str]:
        """UUIDs of GPUs that another plugin offers, whole or in parts."""
        try:
            response = self._stub.GetAllocatableResources(
                pb.AllocatableResourcesRequest(), timeout=CALL_SECONDS
            )
        except grpc.RpcError as error:
            raise PodResourcesError(f"pod-resources: {details(error)}") from error
        return frozenset(
            device.partition("::")[0]
            for devices in response.devices
            if not devices.resource_name.startswith(names.RESOURCE_PREFIX)
            for device in devices.device_ids
            if device.startswith("GPU-")
        )

    def close(self) -> None:
        self._channel.close()


def held(pods: Iterable[pb.PodResources]) -> dict[tuple[Holder, int], frozenset[str]]:
    """Devices by container and GPU ordinal; one container's may come in several parts (by NUMA)."""
    found: dict[tuple[Holder, int], frozenset[str]] = {}
    for pod in pods:
        for container in pod.containers:
            holder = Holder(namespace=pod.namespace, pod=pod.name, container=container.name)
            for devices in container.devices:
                ordinal = devices.resource_name.removeprefix(names.RESOURCE_PREFIX)
                if ordinal == devices.resource_name or not ordinal.isdecimal():
                    continue
                key = (holder, int(ordinal))
                found[key] = found.get(key, frozenset()) | frozenset(devices.device_ids)
    return found
