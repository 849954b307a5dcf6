"""A kubelet's device manager, for tests of the device plugin: real gRPC over the real sockets.

It behaves as the real one does where plugins feel it: it deletes every file in its folder when it
starts, dials back while a plugin registers, picks devices at random, counts a resource as unhealthy
when its stream ends, and keeps pods' devices in a checkpoint.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2_grpc as rpc
from sojourn_deviceplugin._proto import podresources_v1_pb2 as pr
from sojourn_deviceplugin._proto import podresources_v1_pb2_grpc as pr_rpc
from sojourn_deviceplugin.rpc_error import details

CHECKPOINT = "kubelet_internal_checkpoint"


class UnexpectedAdmissionError(Exception):
    """The pod is rejected, with the text that its status would carry."""


@dataclass
class Pod:
    """A pod's devices by resource, and what its container got."""

    namespace: str
    name: str
    devices: dict[str, frozenset[str]] = field(default_factory=dict)
    responses: dict[str, pb.ContainerAllocateResponse] = field(default_factory=dict)
    container: str = "runtime"


class _Plugin:
    """The kubelet's end of one registered resource."""

    def __init__(self, socket: Path, changed: threading.Condition) -> None:
        self.channel = grpc.insecure_channel(f"unix:{socket}")
        self.stub = rpc.DevicePluginStub(self.channel)
        self.options = self.stub.GetDevicePluginOptions(pb.Empty(), timeout=5)
        self.devices: dict[str, bool] = {}
        self.lists = 0
        self.error = ""
        self._changed = changed
        self._stream = self.stub.ListAndWatch(pb.Empty())
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for message in self._stream:
                with self._changed:
                    self.devices = {d.ID: d.health == "Healthy" for d in message.devices}
                    self.lists += 1
                    self._changed.notify_all()
        except grpc.RpcError as error:
            self.error = details(error)
        with self._changed:
            self.devices = dict.fromkeys(self.devices, False)
            self._changed.notify_all()

    def close(self) -> None:
        self._stream.cancel()  # type: ignore[no-untyped-call]
        self.channel.close()


class Kubelet(rpc.RegistrationServicer, pr_rpc.PodResourcesListerServicer):
    """Start, admit pods, end them, stop, start again."""

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.folder = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources"
        self.pods: dict[tuple[str, str], Pod] = {}
        self.foreign: dict[str, list[str]] = {}
        """Devices of other plugins, by resource."""
        self.registrations: list[str] = []
        self.refuse = ""
        """Answer registrations with this error."""
        self.syncing = False
        """It has not heard of its pods yet, as shortly after its start: it lists none."""
        self.listings = 0
        self.answering = threading.Event()
        """While it is not set, nobody hears who holds what."""
        self.answering.set()
        self.changed = threading.Condition()
        self._plugins: dict[str, _Plugin] = {}
        self._random = random.Random(seed)  # noqa: S311 - the kubelet's choice, repeatable
        self._server: grpc.Server | None = None

    # ------------------------------------------------------------ life

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pod_resources.mkdir(parents=True, exist_ok=True)
        for file in self.folder.iterdir():
            if not file.is_dir() and file.name != CHECKPOINT:
                file.unlink()
        (self.pod_resources / "kubelet.sock").unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        rpc.add_RegistrationServicer_to_server(self, server)
        pr_rpc.add_PodResourcesListerServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        server.add_insecure_port(f"unix:{self.pod_resources / 'kubelet.sock'}")
        server.start()
        self._server = server

    def stop(self) -> None:
        for plugin in self._plugins.values():
            plugin.close()
        self._plugins = {}
        if self._server is not None:
            self._server.stop(0).wait()
        self._server = None

    def restart(self, *, lose_checkpoint: bool = False) -> None:
        self.stop()
        if lose_checkpoint:
            self.pods = {}
        self.start()

    def grow_old(self) -> None:
        """It has run for a minute by now; to a plugin that runs meanwhile it has just started."""
        then = time.time() - 60
        os.utime(self.folder / "kubelet.sock", (then, then))

    # ------------------------------------------------------------ its services

    def Register(  # noqa: N802
        self, request: pb.RegisterRequest, context: grpc.ServicerContext
    ) -> pb.Empty:
        if self.refuse:
            context.abort(grpc.StatusCode.UNAVAILABLE, self.refuse)
        assert request.version == "v1beta1"
        assert "/" not in request.endpoint
        plugin = _Plugin(self.folder / request.endpoint, self.changed)
        with self.changed:
            old = self._plugins.pop(request.resource_name, None)
            self._plugins[request.resource_name] = plugin
            self.registrations.append(request.resource_name)
            self.changed.notify_all()
        if old is not None:
            old.close()
        return pb.Empty()

    def List(  # noqa: N802
        self,
        request: pr.ListPodResourcesRequest,  # noqa: ARG002
        context: grpc.ServicerContext,
    ) -> pr.ListPodResourcesResponse:
        with self.changed:
            self.listings += 1
        while not self.answering.wait(0.1) and context.is_active():
            pass
        with self.changed:
            pods = () if self.syncing else self.pods.values()
            return pr.ListPodResourcesResponse(pod_resources=map(_resources, pods))

    def GetAllocatableResources(  # noqa: N802
        self,
        request: pr.AllocatableResourcesRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pr.AllocatableResourcesResponse:
        return pr.AllocatableResourcesResponse(
            devices=[
                pr.ContainerDevices(resource_name=name, device_ids=ids)
                for name, ids in self.foreign.items()
            ]
        )

    # ------------------------------------------------------------ what tests do and see

    def knows(self, resource: str) -> bool:
        return resource in self._plugins

    def capacity(self, resource: str) -> int:
        plugin = self._plugins.get(resource)
        return len(plugin.devices) if plugin else 0

    def allocatable(self, resource: str) -> int:
        plugin = self._plugins.get(resource)
        return sum(plugin.devices.values()) if plugin else 0

    def devices(self, resource: str) -> dict[str, bool]:
        plugin = self._plugins.get(resource)
        return dict(plugin.devices) if plugin else {}

    def lists(self, resource: str) -> int:
        """How many lists the present stream has brought."""
        plugin = self._plugins.get(resource)
        return plugin.lists if plugin else 0

    def error(self, resource: str) -> str:
        return self._plugins[resource].error

    def held(self, resource: str) -> frozenset[str]:
        return frozenset().union(*(pod.devices.get(resource, ()) for pod in self.pods.values()))

    def admit(self, name: str, wants: dict[str, int], *, namespace: str = "default") -> Pod:
        """Allocate for a new pod of one container, as the device manager does."""
        pod = Pod(namespace=namespace, name=name)
        for resource, count in wants.items():
            plugin = self._plugins.get(resource)
            if plugin is None:
                raise UnexpectedAdmissionError(f"no plugin for {resource}")
            chosen = self._choose(plugin, resource, count)
            try:
                response = self.allocate(resource, chosen)
            except grpc.RpcError as error:
                text = f"Allocate failed due to {details(error)}"
                raise UnexpectedAdmissionError(text) from error
            pod.devices[resource] = frozenset(chosen)
            pod.responses[resource] = response
        with self.changed:
            self.pods[namespace, name] = pod
        return pod

    def allocate(self, resource: str, devices: Sequence[str]) -> pb.ContainerAllocateResponse:
        """The call alone, with these devices."""
        wish = pb.ContainerAllocateRequest(devices_ids=devices)
        request = pb.AllocateRequest(container_requests=[wish])
        answer = self._plugins[resource].stub.Allocate(request, timeout=10)
        return answer.container_responses[0]

    def _choose(self, plugin: _Plugin, resource: str, count: int) -> Sequence[str]:
        free = [d for d, ok in plugin.devices.items() if ok and d not in self.held(resource)]
        if len(free) < count:
            raise UnexpectedAdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {count}, "
                f"Available: {len(free)}"
            )
        return self._random.sample(free, count)

    def finish(self, pod: Pod) -> None:
        """The pod is terminal: its devices are free."""
        with self.changed:
            del self.pods[pod.namespace, pod.name]

    def preferred(self, resource: str, available: Sequence[str], size: int) -> list[str]:
        """What the plugin would choose; like a kubelet, only if its options offer that."""
        if not self._plugins[resource].options.get_preferred_allocation_available:
            return list(available)[:size]
        wish = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, allocation_size=size
        )
        answer = self._plugins[resource].stub.GetPreferredAllocation(
            pb.PreferredAllocationRequest(container_requests=[wish]), timeout=5
        )
        return list(answer.container_responses[0].deviceIDs)


def _resources(pod: Pod) -> pr.PodResources:
    devices = [
        # In two parts, as the kubelet reports devices of two NUMA nodes.
        pr.ContainerDevices(resource_name=resource, device_ids=part)
        for resource, ids in pod.devices.items()
        for part in (sorted(ids)[::2], sorted(ids)[1::2])
    ]
    container = pr.ContainerResources(name=pod.container, devices=devices)
    return pr.PodResources(name=pod.name, namespace=pod.namespace, containers=[container])


@contextlib.contextmanager
def running(kubelet: Kubelet) -> Iterator[Kubelet]:
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
