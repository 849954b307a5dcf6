"""MIG instances as devices: one resource per profile and node, by the instances' own UUIDs.

Pure. A GPU in MIG mode offers no slices; which instances there are is somebody else's doing, and is
followed as NVML shows it. No arbiter here: instances do not share what would have to be arbitrated.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sojourn_api import names

from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin.config import Config, DeviceList, DeviceNodes
from sojourn_deviceplugin.facts import GpuFacts


@dataclass(frozen=True, slots=True)
class Instance:
    """One MIG device as the kubelet shall see it."""

    uuid: str
    numa: int | None
    healthy: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """All instances of one profile on the node."""

    profile: str
    instances: tuple[Instance, ...] = ()

    def message(self) -> pb.ListAndWatchResponse:
        """The whole list."""
        response = pb.ListAndWatchResponse()
        for instance in self.instances:
            health = "Healthy" if instance.healthy else "Unhealthy"
            device = response.devices.add(ID=instance.uuid, health=health)
            if instance.numa is not None:
                device.topology.nodes.add(ID=instance.numa)
        return response

    def sick(self) -> "Pool":
        """The same, none of them usable."""
        return replace(self, instances=tuple(replace(i, healthy=False) for i in self.instances))


def pools(
    gpus: Iterable[GpuFacts], *, healthy: Collection[str], before: Mapping[str, Pool]
) -> dict[str, Pool]:
    """By resource. `healthy`: UUIDs of GPUs that can be trusted; `before`: pools known already."""
    found = {resource: Pool(pool.profile) for resource, pool in before.items()}
    for gpu in gpus:
        for instance in gpu.instances:
            resource = names.mig_resource(instance.profile)
            pool = found.get(resource, Pool(instance.profile))
            new = Instance(instance.uuid, gpu.numa, gpu.uuid in healthy)
            found[resource] = replace(pool, instances=(*pool.instances, new))
    return found


def answer(pool: Pool, devices: Sequence[str], config: Config) -> pb.ContainerAllocateResponse:
    """What the container gets; LookupError for an instance that is gone or sick."""
    good = {instance.uuid for instance in pool.instances if instance.healthy}
    lost = sorted(set(devices) - good)
    if lost:
        raise LookupError(f"no such healthy instance: {lost[0]}; it was reconfigured or is sick")
    response = pb.ContainerAllocateResponse(
        envs={names.env_mig_uuids(pool.profile): ",".join(sorted(devices))}
    )
    if config.device_list_strategy is DeviceList.CDI:
        for device in sorted(devices):
            response.cdi_devices.add(name=f"{config.cdi_kind}={device}")
    elif config.device_nodes is not DeviceNodes.NONE:
        # Which files under /dev/nvidia-caps belong to an instance only NVIDIA's runtime knows.
        response.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(sorted(devices))
    return response
