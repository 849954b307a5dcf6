"""What is offered to the kubelet of one GPU at one moment, and what a container is given with it.

Pure: from what is known, observed and granted to the list of devices and to Allocate's answer.
"""

from dataclasses import dataclass

from sojourn_api import names

from sojourn_deviceplugin import mps, slices
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin.config import Config, DeviceList
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.health import Verdict
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.registry import Known

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


@dataclass(frozen=True, slots=True)
class Offer:
    """One GPU as the kubelet shall see it. `out` are slices withdrawn for foreign memory."""

    gpu: Known
    verdict: Verdict
    numa: int | None = None
    out: frozenset[str] = frozenset()
    foreign_bytes: int = 0
    foreign_by: tuple[str, ...] = ()
    links: tuple[int, ...] = ()
    mig: bool = False
    nodes: tuple[str, ...] = ()
    """Device files that a container of this GPU needs; empty in simulation."""

    @property
    def resource(self) -> str:
        return names.gpu_resource(self.gpu.ordinal)

    @property
    def in_service(self) -> int:
        return self.gpu.slices - len(self.out) if self.verdict.healthy else 0

    def message(self) -> pb.ListAndWatchResponse:
        """The whole list, as the kubelet wants it at every change."""
        topology = None
        if self.numa is not None:
            topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=self.numa)])
        return pb.ListAndWatchResponse(
            devices=[
                pb.Device(ID=name, health=self._health(name), topology=topology)
                for name in self.gpu.ids
            ]
        )

    def _health(self, name: str) -> str:
        return HEALTHY if self.verdict.healthy and name not in self.out else UNHEALTHY


Snapshot = tuple[NodeFacts, tuple[Offer, ...], tuple[Grant, ...]]
"""A node at one moment."""


def refusal(gpu: Known, *, limit: int = slices.MESSAGE_LIMIT) -> Verdict | None:
    """Why a GPU must not be offered at all: its list would not pass the kubelet's client."""
    size = slices.message_bytes(gpu.ids, numa=True)
    if size <= limit:
        return None
    text = (
        f"{gpu.slices} slices of {gpu.slice_bytes} bytes make a list of {size} bytes, over the "
        f"kubelet's {limit}; raise sliceBytes"
    )
    return Verdict(healthy=False, reason="TooManySlices", message=text)


def answer(offer: Offer, grant: Grant, config: Config) -> pb.ContainerAllocateResponse:
    """What the container gets: keys and mounts named by GPU, since one pod may get several."""
    ordinal, gpu = offer.gpu.ordinal, offer.gpu
    grants = config.arbiter_dir / gpu.uuid / "grants"
    response = pb.ContainerAllocateResponse(
        envs={
            names.env_gpu_uuid(ordinal): gpu.uuid,
            names.env_gpu_slices(ordinal): str(grant.slices),
            names.env_gpu_bytes(ordinal): str(grant.slices * gpu.slice_bytes),
            names.env_gpu_slot(ordinal): grant.slot,
        },
        mounts=[
            pb.Mount(
                container_path=names.arbiter_all(ordinal), host_path=str(grants), read_only=True
            ),
            pb.Mount(
                container_path=names.arbiter_own(ordinal),
                host_path=str(grants / grant.slot / "pod"),
                read_only=False,
            ),
        ],
    )
    if grant.mps:
        mps.join(response, grant, gpu, config)
    if config.device_list_strategy is DeviceList.CDI:
        response.cdi_devices.add(name=f"{config.cdi_kind}={gpu.uuid}")
    else:
        for node in offer.nodes:
            response.devices.add(container_path=node, host_path=node, permissions="rw")
    return response
