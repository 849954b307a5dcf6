"""Copies of what was seen at one moment, and one session cut out of it.

Pure. What the plan is told of it is said in `view`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sojourn_api.objects import (
    GpuNode,
    Model,
    Offender,
    Tenant,
    Tier,
)

from sojourn_operator import clock
from sojourn_operator.seen.budget import Budget
from sojourn_operator.seen.cache import Cache, Seen
from sojourn_operator.seen.node import Node
from sojourn_operator.seen.others import Taken
from sojourn_operator.seen.pod import Pod
from sojourn_operator.session import doubts
from sojourn_operator.session.scene import Runtime, Scene


@dataclass(frozen=True, slots=True)
class World:
    """Copies of the cache's tables at one moment, and the polled facts."""

    now: float
    sessions: Mapping[str, Seen]
    models: Mapping[str, Model] = field(default_factory=dict)
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    gpu_nodes: Mapping[str, GpuNode] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    unreadable_nodes: frozenset[str] = frozenset()
    """They are there, and that is all that is known: so they are not lost."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    """By the pod's uid."""
    others: Mapping[str, Taken] = field(default_factory=dict)
    """What pods that are no session's take, by node."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Nodes whose device plugin is not heard of any more, with the time of its last sign."""
    never: Mapping[str, str] = field(default_factory=dict)
    """Sessions that run and could not start again as they are written now: why, by key."""
    lost_node_seconds: float = 60.0
    pending_seconds: float = 60.0
    purges: bool = False
    """The store is mounted: what is deleted there, a pod deletes."""

    @property
    def owners(self) -> Mapping[str, Tenant]:
        """Whose each namespace is."""
        return tenants_by_namespace(self.tenants.values())

    def pods_by_session(self) -> dict[str, list[Pod]]:
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            found.setdefault(pod.key, []).append(pod)
        return found

    def lost_nodes(self) -> frozenset[str]:
        """Nodes that pods are bound to and that are gone or were silent for too long."""
        used = {pod.node for pod in self.pods.values() if pod.node} - self.unreadable_nodes
        return frozenset(name for name in used if self._lost(self.nodes.get(name)))

    def silent_until(self) -> Iterable[float]:
        """When nodes that are silent now will count as lost."""
        for node in self.nodes.values():
            if not node.ready and not self._lost(node):
                yield node.changed + self.lost_node_seconds

    def _lost(self, node: Node | None) -> bool:
        if node is None:
            return True
        return not node.ready and self.now - node.changed >= self.lost_node_seconds


def world_of(cache: Cache, now: float) -> World:
    """What the cache holds at this moment; the rest is as if nothing were polled or configured."""
    return World(
        now=now,
        sessions=cache.sessions.values(),
        models=cache.models.values(),
        tiers=cache.tiers.values(),
        tenants=cache.tenants.values(),
        gpu_nodes=cache.gpu_nodes.values(),
        nodes=cache.nodes.values(),
        unreadable_nodes=cache.nodes.unreadable(),
        pods=cache.pods.values(),
        budgets=cache.budgets.values(),
    )


def scene_of(world: World, key: str, *, pods: Iterable[Pod], lost_nodes: frozenset[str]) -> Scene:
    """One session and all that its next step depends on."""
    session = world.sessions[key].session
    owned = [pod for pod in pods if pod.owner_uid == session.meta.uid]
    mine = tuple(pod for pod in owned if pod.epoch)
    model = world.models.get(session.spec.model)
    placement = session.status.placement
    node = world.nodes.get(placement.node) if placement else None
    present = next((pod for pod in mine if pod.epoch == session.status.epoch), None)
    runtime = world.runtimes.get(present.uid) if present else None
    return Scene(
        session=session,
        now=world.now,
        pods=mine,
        tier=world.tiers.get(session.spec.tier),
        model_generation=model.meta.generation if model else 0,
        cordoned=node is not None and (node.cordoned or node.leaving),
        lost_nodes=lost_nodes,
        node_state=_state(node),
        runtime=runtime,
        doubts=doubts.of(session, model, runtime, never=world.never.get(key, "")),
        offence=_offence(world, present) if present else None,
        pending_seconds=world.pending_seconds,
        purges=world.purges,
        purge=next((pod for pod in owned if not pod.epoch), None),
    )


def _offence(world: World, pod: Pod) -> Offender | None:
    """What its node's device plugin holds against a pod; first what it shall be stopped for."""
    node = world.gpu_nodes.get(pod.node)
    found = [one for one in node.offenders if one.uid == pod.uid] if node else []
    return min(found, key=lambda one: (not one.stop, one.reason), default=None)


def _state(node: Node | None) -> str:
    """In words that stay the same while the node does."""
    if node is None:
        return "unknown"
    return "ready" if node.ready else f"not ready since {clock.text(node.changed)}"


def tenants_by_namespace(tenants: Iterable[Tenant]) -> dict[str, Tenant]:
    """Whose each namespace is: the oldest claim wins."""
    found: dict[str, Tenant] = {}
    for tenant in sorted(tenants, key=lambda one: (one.meta.created, one.meta.name)):
        for namespace in tenant.namespaces:
            found.setdefault(namespace, tenant)
    return found
