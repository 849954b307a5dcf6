"""From what was seen to what the plan decides from, and back from its places to ours.

Pure. Only translation: what a session asks for is in `wants`, when it may start in `pacing`.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from sojourn_api.gpus import speed_of
from sojourn_api.names import PAUSED, PLACED
from sojourn_api.objects import (
    Gpu,
    GpuNode,
    GpuPlace,
    Nomination,
    Session,
    SessionPlacement,
    SessionStatus,
    Tenant,
)

from sojourn_operator import clock, ending, pacing, plan, wants
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import TRUE
from sojourn_operator.cache import Seen
from sojourn_operator.node import Node
from sojourn_operator.pod import Pod
from sojourn_operator.tiers import planned
from sojourn_operator.world import World, tenants_by_namespace


def state(world: World, *, blocked: frozenset[str]) -> plan.State:
    """What the plan decides from; sessions in `blocked` cannot start whatever it says."""
    belongs = tenants_by_namespace(world.tenants.values())
    pods = world.pods_by_session()
    size = wants.slice_bytes(world.gpu_nodes.values())
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
        tiers={name: planned(tier) for name, tier in world.tiers.items()},
        tenants={name: _tenant(tenant) for name, tenant in world.tenants.items()},
        budgets={key: budget.allowed for key, budget in world.budgets.items()},
    )


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


HOLDING: Final = frozenset({plan.Phase.STARTING, plan.Phase.RUNNING, plan.Phase.PAUSING})


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
        asked = wants.held(held, model)
    elif model is None:
        asked = plan.Request(slices=1)
    else:
        share = wants.share_of(session, tier, owner)
        asked = wants.request(session, model, share=share, slice_bytes=size)
    return plan.Session(
        key=f"{meta.namespace}/{meta.name}",
        tier=session.spec.tier,
        request=asked,
        phase=phase,
        created=clock.seconds(meta.created),
        since=_since(session, phase),
        tenant=owner.meta.name if owner else "",
        place=_place(held) if held else None,
        suspend=session.spec.suspend or pacing.idle(session, runtime),
        deleting=meta.deleting,
        save_bytes=runtime.unsaved_bytes if runtime else 0,
        kernel_class=status.snapshot.kernel_class if status.snapshot else "",
        nomination=_nomination(status.nomination),
        not_before=pacing.not_before(session),
        avoid=pacing.avoid(session, now=world.now),
        budgets=_budgets(world, present) if present else (),
    )


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


def _budgets(world: World, pod: Pod) -> tuple[str, ...]:
    """The disruption budgets that cover the session's pod."""
    return tuple(
        key
        for key, budget in world.budgets.items()
        if budget.covers(namespace=pod.namespace, labels=pod.labels)
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
