"""A Kubernetes node as it is seen: raw object in, frozen facts out.

Pure. Its GPUs are the GPUNode's to tell; who may be placed there is decided in `plan`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sojourn_api.names import RESOURCE_PREFIX
from sojourn_api.parse import parse_meta
from sojourn_api.quantity import quantity
from sojourn_api.reader import Reader

from sojourn_operator.clock import seconds

LEAVING_TAINTS: Final = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""Whoever sets one of these is about to remove the node."""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `changed` is when its readiness last changed, in seconds since 1970."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    cordoned: bool
    ready: bool
    changed: float
    cpu_milli: int
    memory_bytes: int
    pods: int
    gpu_slices: Mapping[int, int]
    """By ordinal: what the kubelet has of the device plugin now; a GPU it lacks cannot be used."""

    @property
    def leaving(self) -> bool:
        return any(taint.key in LEAVING_TAINTS for taint in self.taints)


def parse_node(raw: Mapping[str, object]) -> Node:
    """A node of the core API."""
    meta = parse_meta(raw)
    root = Reader(raw)
    spec = root.part("spec")
    status = root.part("status")
    room = status.part("allocatable")
    ready = next(
        (entry for entry in status.parts("conditions") if entry.text("type") == "Ready"), Reader({})
    )
    return Node(
        name=meta.name,
        labels=meta.labels,
        taints=tuple(
            Taint(taint.text("key"), taint.text("value", ""), taint.text("effect"))
            for taint in spec.parts("taints")
        ),
        cordoned=spec.flag("unschedulable", default=False),
        ready=ready.text("status", "") == "True",
        changed=seconds(ready.text("lastTransitionTime", meta.created)),
        cpu_milli=int(quantity(room.text("cpu", "0") or "0") * 1000),
        memory_bytes=int(quantity(room.text("memory", "0") or "0")),
        pods=int(quantity(room.text("pods", "110") or "110")),
        gpu_slices=_gpu_slices(room.raw),
    )


def _gpu_slices(allocatable: Mapping[str, object]) -> dict[int, int]:
    found: dict[int, int] = {}
    for name, amount in allocatable.items():
        ordinal = name.removeprefix(RESOURCE_PREFIX)
        if ordinal != name and ordinal.isdecimal():
            found[int(ordinal)] = int(quantity(str(amount)))
    return found
