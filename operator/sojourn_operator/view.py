"""From what was seen to what the plan decides from: sessions, nodes and tiers of one moment.

Pure. No defaults of the API and no decisions; derived figures (slices of a session without a wish,
its share, its back-off) are computed here, each in one function.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from sojourn_api.gpus import speed_of
from sojourn_api.names import ANNOTATION_WAKE, PAUSED, PLACED
from sojourn_api.objects import (
    Gpu,
    GpuNode,
    GpuPlace,
    IdleAction,
    Model,
    Nomination,
    Session,
    SessionPlacement,
    SessionStatus,
    Spreading,
    Tenant,
    Tier,
)

from sojourn_operator import clock, ending, plan, reasons
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import TRUE
from sojourn_operator.budget import Budget
from sojourn_operator.cache import Seen
from sojourn_operator.node import Node, quantity
from sojourn_operator.pod import Pod
from sojourn_operator.scene import Runtime, Scene

MIB: Final = 1024 * 1024
DEFAULT_SLICE_BYTES: Final = 1024 * MIB
WORKSPACE_BYTES: Final = 512 * MIB
"""Activations and the allocator's slack on one GPU (contract of the runtime's memory plan)."""


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


def scene(world: World, key: str, *, pods: Iterable[Pod], lost_nodes: frozenset[str]) -> Scene:
    """One session and all that its next step depends on."""
    session = world.sessions[key].session
    owned = [pod for pod in pods if pod.owner_uid == session.meta.uid]
    mine = tuple(pod for pod in owned if pod.epoch)
    model = world.models.get(session.spec.model)
    placement = session.status.placement
    node = world.nodes.get(placement.node) if placement else None
    present = next((pod for pod in mine if pod.epoch == session.status.epoch), None)
    return Scene(
        session=session,
        now=world.now,
        pods=mine,
        tier=world.tiers.get(session.spec.tier),
        model_generation=model.meta.generation if model else 0,
        cordoned=node is not None and (node.cordoned or node.leaving),
        lost_nodes=lost_nodes,
        runtime=world.runtimes.get(present.uid) if present else None,
        pending_seconds=world.pending_seconds,
        purges=world.purges,
        purge=next((pod for pod in owned if not pod.epoch), None),
    )


def state(world: World, *, blocked: frozenset[str]) -> plan.State:
    """What the plan decides from; sessions in `blocked` cannot start whatever it says."""
    belongs = tenants_by_namespace(world.tenants.values())
    pods = world.pods_by_session()
    size = slice_bytes(world.gpu_nodes.values())
    sessions = {
        key: _session(
            world,
            seen,
            tenant=belongs,
            pods=pods.get(key, ()),
            blocked=key in blocked,
            size=size,
        )
        for key, seen in world.sessions.items()
    }
    return plan.State(
        now=world.now,
        nodes=_nodes(world),
        sessions=sessions,
        tiers={name: _tier(tier) for name, tier in world.tiers.items()},
        tenants={name: _tenant(tenant) for name, tenant in world.tenants.items()},
        budgets={key: budget.allowed for key, budget in world.budgets.items()},
    )


def tenants_by_namespace(tenants: Iterable[Tenant]) -> dict[str, Tenant]:
    """Whose each namespace is: the oldest claim wins."""
    found: dict[str, Tenant] = {}
    for tenant in sorted(tenants, key=lambda one: (one.meta.created, one.meta.name)):
        for namespace in tenant.namespaces:
            found.setdefault(namespace, tenant)
    return found


def blocked_by_failure(session: Session, *, model_generation: int) -> bool:
    """Whether the last start failed in a way that only a change can mend, and nothing changed."""
    failure = session.status.failure
    return (
        failure is not None
        and not failure.retry
        and failure.generation == session.meta.generation
        and failure.model_generation == model_generation
    )


def not_before(session: Session) -> float:
    """The end of the back-off after a failed start; a changed spec is tried at once."""
    failure = session.status.failure
    if failure is None or not failure.retry or failure.generation != session.meta.generation:
        return 0.0
    return clock.seconds(failure.at) + ending.back_off(session.status.failures)


def idle(session: Session, runtime: Runtime | None) -> bool:
    """Whether the idle policy wants the session paused, or keeps it so until it is woken."""
    if session.spec.idle_action is not IdleAction.PAUSE:
        return False
    paused = conditions.of(session.status, PAUSED)
    if paused.reason != reasons.IDLE:
        return runtime is not None and runtime.idle
    woken = clock.seconds(session.meta.annotations.get(ANNOTATION_WAKE, ""))
    since = clock.seconds(session.status.paused_at) if paused.status == TRUE else math.inf
    return woken < since


def request(session: Session, model: Model, *, share: int, slice_bytes: int) -> plan.Request:
    """What the session asks for in all."""
    spec = session.spec
    tokens = spec.context_length or model.context_length
    need = model.weight_bytes + model.kv_bytes_per_token * tokens + WORKSPACE_BYTES
    minimum = -(-model.minimum_gpu_bytes // slice_bytes)
    slices = spec.resources.slices or max(-(-need // slice_bytes), minimum)
    cpu, memory = _pod_resources(spec.template)
    return plan.Request(
        slices=slices,
        share=share,
        decode_fraction=model.decode_fraction,
        max_shards=spec.resources.max_shards,
        minimum_slices=minimum,
        gpu_models=spec.placement.gpu_models,
        node_selector=tuple(sorted(spec.placement.node_selector.items())),
        tolerations=_tolerations(spec.template),
        cpu_milli=cpu,
        memory_bytes=memory,
        spread=spec.placement.spreading is Spreading.SPREAD,
    )


def share_of(session: Session, tier: Tier | None, tenant: Tenant | None) -> int:
    """The share asked for: the session's wish, else its tenant's guarantee, else its tier's."""
    if session.spec.resources.share is not None:
        return session.spec.resources.share
    if tenant is not None and session.spec.tier in tenant.guarantees:
        return tenant.guarantees[session.spec.tier]
    return tier.guaranteed_share if tier is not None else 0


def slice_bytes(gpu_nodes: Iterable[GpuNode]) -> int:
    """The size of a slice: the smallest in use, so that a derived number is never short."""
    sizes = [gpu.slice_bytes for node in gpu_nodes for gpu in node.gpus]
    return min(sizes, default=DEFAULT_SLICE_BYTES)


def places(world: World, place: plan.Place) -> SessionPlacement:
    """A place of the plan with what users and pods want to know of each GPU."""
    node = world.gpu_nodes.get(place.node)
    known = {gpu.ordinal: gpu for gpu in node.gpus} if node else {}
    gpus = []
    for use in place.gpus:
        gpu = known.get(use.ordinal)
        uuid, model = (gpu.uuid, gpu.model) if gpu else ("", "")
        gpus.append(GpuPlace(use.ordinal, uuid, model, use.slices, use.share))
    return SessionPlacement(place.node, tuple(gpus))


def nomination(world: World, found: plan.Nomination) -> Nomination:
    """A nomination of the plan as the status keeps it."""
    placed = places(world, found.place)
    return Nomination(placed.node, placed.gpus, found.victims, clock.text(math.ceil(found.expires)))


def _session(
    world: World,
    seen: Seen,
    *,
    tenant: Mapping[str, Tenant],
    pods: Iterable[Pod],
    blocked: bool,
    size: int,
) -> plan.Session:
    session = seen.session
    status = session.status
    meta = session.meta
    owner = tenant.get(meta.namespace)
    model = world.models.get(session.spec.model)
    tier = world.tiers.get(session.spec.tier)
    present = next((pod for pod in pods if pod.epoch == status.epoch), None)
    runtime = world.runtimes.get(present.uid) if present else None
    held = status.placement
    phase = _phase(session, present, blocked=blocked)
    if held is not None and (model is None or seen.problem or phase in HOLDING):
        wants = _held_request(held, model)
    elif model is None:
        wants = plan.Request(slices=1)
    else:
        share = share_of(session, tier, owner)
        wants = request(session, model, share=share, slice_bytes=size)
    return plan.Session(
        key=f"{meta.namespace}/{meta.name}",
        tier=session.spec.tier,
        request=wants,
        phase=phase,
        created=clock.seconds(meta.created),
        since=_since(session, phase),
        tenant=owner.meta.name if owner else "",
        place=_place(held) if held else None,
        suspend=session.spec.suspend or idle(session, runtime),
        deleting=meta.deleting,
        save_bytes=runtime.unsaved_bytes if runtime else 0,
        kernel_class=status.snapshot.kernel_class if status.snapshot else "",
        nomination=_nomination(status.nomination),
        not_before=not_before(session),
        avoid=_avoid(session, now=world.now),
        budgets=_budgets(world, present) if present else (),
    )


HOLDING: Final = frozenset({plan.Phase.STARTING, plan.Phase.RUNNING, plan.Phase.PAUSING})


def _phase(session: Session, pod: Pod | None, *, blocked: bool) -> plan.Phase:
    status = session.status
    if conditions.of(status, PLACED).status == TRUE:
        if ending.pause_reason(status) or (pod is not None and pod.deleting):
            return plan.Phase.PAUSING
        return plan.Phase.RUNNING if status.started_at else plan.Phase.STARTING
    if blocked:
        return plan.Phase.FAILED
    if conditions.of(status, PAUSED).status == TRUE:
        return plan.Phase.PAUSED
    return plan.Phase.WAITING


def _since(session: Session, phase: plan.Phase) -> float:
    status = session.status
    created = clock.seconds(session.meta.created)
    if phase is plan.Phase.RUNNING:
        return clock.seconds(status.started_at, default=created)
    if phase is plan.Phase.PAUSED:
        return clock.seconds(status.paused_at, default=created)
    return conditions.since(status, PLACED) or created


def avoided_until(session: Session) -> float:
    """Until when the node of the last start is left out; 0 if it did not refuse it."""
    failure = session.status.failure
    if failure is None or failure.reason not in REFUSALS:
        return 0.0
    return clock.seconds(failure.at) + AVOID_SECONDS


def _avoid(session: Session, *, now: float) -> tuple[str, ...]:
    placement = session.status.placement
    return (placement.node,) if placement is not None and now < avoided_until(session) else ()


REFUSALS: Final = frozenset(
    {reasons.UNSCHEDULABLE, reasons.NODE_PRESSURE, "UnexpectedAdmissionError", "NodeAffinity"}
)
AVOID_SECONDS: Final = 60.0
"""So long is a node left out that refused a start: its ledger needs a while to be true."""


def _budgets(world: World, pod: Pod) -> tuple[str, ...]:
    """The disruption budgets that cover the session's pod."""
    return tuple(
        key
        for key, budget in world.budgets.items()
        if budget.covers(namespace=pod.namespace, labels=pod.labels)
    )


def _held_request(held: SessionPlacement, model: Model | None) -> plan.Request:
    """A session asks for what it holds, whatever its spec says by now."""
    shards = max(len(held.gpus), 1)
    return plan.Request(
        slices=sum(gpu.slices for gpu in held.gpus),
        share=sum(gpu.share for gpu in held.gpus),
        decode_fraction=model.decode_fraction if model else 500,
        shards=shards,
        max_shards=shards,
    )


def _place(held: SessionPlacement) -> plan.Place:
    return plan.Place(
        held.node, tuple(plan.GpuUse(gpu.ordinal, gpu.slices, gpu.share) for gpu in held.gpus)
    )


def _nomination(found: Nomination | None) -> plan.Nomination | None:
    if found is None:
        return None
    place = _place(SessionPlacement(found.node, found.gpus))
    return plan.Nomination(place, found.victims, clock.seconds(found.expires))


def _nodes(world: World) -> dict[str, plan.Node]:
    strays = _strays(world)
    return {
        name: _node(node, world.gpu_nodes[name], strays=strays.get(name, {}))
        for name, node in world.nodes.items()
        if name in world.gpu_nodes
    }


def _node(node: Node, gpu_node: GpuNode, *, strays: Mapping[int, int]) -> plan.Node:
    gpus = tuple(
        plan.Gpu(
            ordinal=gpu.ordinal,
            uuid=gpu.uuid,
            model=gpu.model,
            slices=_usable(node, gpu, stray=strays.get(gpu.ordinal, 0)),
            speed=speed_of(gpu.model),
            healthy=gpu.healthy,
            links=gpu.links,
            mig=gpu.mig,
        )
        for gpu in gpu_node.gpus
    )
    return plan.Node(
        name=node.name,
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        gpus=gpus,
        labels=node.labels,
        taints=tuple(plan.Taint(taint.key, taint.value, taint.effect) for taint in node.taints),
        schedulable=not node.cordoned,
        ready=node.ready,
        draining=node.leaving,
        pods=node.pods,
    )


def _usable(node: Node, gpu: Gpu, *, stray: int) -> int:
    """Slices that sessions can have: the kubelet counts, and the plugin has them in service."""
    return max(min(gpu.slices, node.gpu_slices.get(gpu.ordinal, 0)) - stray, 0)


def _strays(world: World) -> dict[str, dict[int, int]]:
    """Slices of living pods that no session's status speaks of, by node and ordinal."""
    found: dict[str, dict[int, int]] = {}
    for pod in world.pods.values():
        seen = world.sessions.get(pod.key)
        status = seen.session.status if seen else None
        if pod.ended(world.now) or not pod.node or (status and _speaks_of(status, pod)):
            continue
        slices = found.setdefault(pod.node, {})
        for ordinal, count in pod.slices.items():
            slices[ordinal] = slices.get(ordinal, 0) + count
    return found


def _speaks_of(status: SessionStatus, pod: Pod) -> bool:
    return conditions.of(status, PLACED).status == TRUE and pod.epoch == status.epoch


def _tier(tier: Tier) -> plan.Tier:
    return plan.Tier(
        name=tier.meta.name,
        priority=tier.priority,
        guaranteed_share=tier.guaranteed_share,
        pausable_by=frozenset(tier.pausable_by),
        min_run=float(tier.min_run_seconds),
        cool_down=float(tier.cool_down_seconds),
    )


def _tenant(tenant: Tenant) -> plan.Tenant:
    return plan.Tenant(
        name=tenant.meta.name,
        tiers=frozenset(tenant.tiers),
        guarantees=tenant.guarantees,
        weight=tenant.weight,
        quota_share=tenant.quota.share,
        quota_slices=tenant.quota.slices,
        quota_sessions=tenant.quota.sessions,
    )


def _tolerations(template: Mapping[str, object]) -> tuple[plan.Toleration, ...]:
    entries = template.get("tolerations")
    if not isinstance(entries, list):
        return ()
    return tuple(
        plan.Toleration(
            key=str(entry.get("key") or ""),
            operator=str(entry.get("operator") or "Equal"),
            value=str(entry.get("value") or ""),
            effect=str(entry.get("effect") or ""),
        )
        for entry in entries
    )


def _pod_resources(template: Mapping[str, object]) -> tuple[int, int]:
    """CPU in thousandths and memory in bytes that the pod will request."""
    resources = template.get("resources")
    if not isinstance(resources, Mapping):
        return 0, 0
    limits = cast("Mapping[str, object]", resources.get("limits") or {})
    requests = {**limits, **cast("Mapping[str, object]", resources.get("requests") or {})}
    cpu = quantity(str(requests.get("cpu", "0")))
    return int(cpu * 1000), int(quantity(str(requests.get("memory", "0"))))
