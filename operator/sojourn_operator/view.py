"""From what was seen to what the plan decides from, and back from its places to ours.

Pure. Only translation: what a session asks for is in `wants`, when it may start in `pacing`.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sojourn_api.gpus import Speed, arch_in, arch_of, same_model, speed_of, speeds
from sojourn_api.names import PAUSED, PLACED
from sojourn_api.objects import (
    Gpu,
    GpuNode,
    GpuPlace,
    Model,
    Nomination,
    Session,
    SessionPlacement,
    SessionSpec,
    SessionStatus,
    Tenant,
    Tier,
)

from sojourn_operator import clock, plan, wants
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import TRUE
from sojourn_operator.config import Config
from sojourn_operator.faults import SESSION, Faults
from sojourn_operator.seen.budget import Budget
from sojourn_operator.seen.cache import Seen
from sojourn_operator.seen.node import Node
from sojourn_operator.seen.others import NOTHING, Taken
from sojourn_operator.seen.pod import Pod
from sojourn_operator.seen.world import World, tenants_by_namespace
from sojourn_operator.session import ending, pacing
from sojourn_operator.session.scene import Runtime
from sojourn_operator.tiers import planned

S = TypeVar("S")
T = TypeVar("T")

UNREADABLE: Final = SessionSpec(model="unreadable", tier="unreadable")


class View:
    """Translates one world after another; what did not change is the same object as before.

    The plan looks at what is another object: so a pass costs what has changed.
    """

    def __init__(
        self,
        faults: Faults | None = None,
        *,
        most_shards: int | None = None,
        speed: Callable[[str], Speed | None] = speed_of,
    ) -> None:
        """`most_shards` is what the sessions' device allows; see `wants.most_shards`.

        `speed` is that of GPU models.
        """
        self._speed = speed
        self._faults = faults or Faults()
        self._most_shards = most_shards
        self._sessions: dict[str, tuple[_Parts, plan.Session]] = {}
        self._nodes: dict[str, tuple[tuple[object, ...], plan.Node]] = {}

    def state(self, world: World, *, blocked: frozenset[str]) -> plan.State:
        """What the plan decides from; sessions in `blocked` cannot start whatever it says."""
        belongs = tenants_by_namespace(world.tenants.values())
        pods = world.pods_by_session()
        size = wants.slice_bytes(world.gpu_nodes.values())
        budgets = tuple(world.budgets.items())
        known, self._sessions = self._sessions, {}
        for key, seen in world.sessions.items():
            parts = _parts(
                world,
                seen,
                owner=belongs.get(seen.session.meta.namespace),
                pods=pods.get(key, ()),
                blocked=key in blocked,
                size=size,
                budgets=budgets,
                most_shards=self._most_shards,
            )
            before = known.get(key)
            # The clock alone may end that a node is avoided.
            if before is None or before[1].avoid or before[0] != parts:
                before = self._translate(world.now, key, parts)
            if before is not None:
                self._sessions[key] = before
        return plan.State(
            now=world.now,
            nodes=self._nodes_of(world),
            sessions={key: session for key, (_, session) in self._sessions.items()},
            tiers=self._each("QoSTier", world.tiers, planned),
            tenants=self._each("Tenant", world.tenants, _tenant),
            budgets={key: budget.allowed for key, budget in world.budgets.items()},
        )

    def _translate(self, now: float, key: str, parts: "_Parts") -> "_Translated | None":
        """A session that brings out a fault starts nowhere, and keeps what its status says it has.

        None where not even that can be read: then its pods are strays.
        """
        found = self._faults.tried(SESSION, key, lambda: _session(now, parts))
        if found is None:
            bare = replace(parts.seen.session, spec=UNREADABLE)
            seen = replace(parts.seen, session=bare, problem="unreadable")
            held = replace(parts, seen=seen, model=None, blocked=True)
            found = self._faults.tried(SESSION, key, lambda: _session(now, held))
        return (parts, found) if found is not None else None

    def _each(self, kind: str, known: Mapping[str, S], translate: Callable[[S], T]) -> dict[str, T]:
        found: dict[str, T] = {}
        for name, one in known.items():
            with self._faults.apart(kind, name):
                found[name] = translate(one)
        return found

    def _nodes_of(self, world: World) -> dict[str, plan.Node]:
        strays = _strays(world, known=self._sessions)
        known, self._nodes = self._nodes, {}
        for name, node in world.nodes.items():
            gpu_node = world.gpu_nodes.get(name)
            if gpu_node is None:
                continue
            stray = strays.get(name, {})
            taken = world.others.get(name, NOTHING)
            parts = (node, gpu_node, stray, taken)
            with self._faults.apart("Node", name):
                before = known.get(name)
                if before is None or before[0] != parts:
                    before = (
                        parts,
                        _node(node, gpu_node, strays=stray, taken=taken, speed=self._speed),
                    )
                self._nodes[name] = before
        return {name: node for name, (_, node) in self._nodes.items()}


def of(config: Config, faults: Faults | None = None) -> View:
    """With what the settings say of devices and GPUs."""
    shards = wants.most_shards(config.device)
    return View(faults, most_shards=shards, speed=speeds(config.speeds))


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


@dataclass(frozen=True, slots=True)
class _Parts:
    """All that a session of the plan is made from, but for the time."""

    seen: Seen
    owner: Tenant | None
    model: Model | None
    tier: Tier | None
    present: Pod | None
    runtime: Runtime | None
    blocked: bool
    size: int
    budgets: tuple[tuple[str, Budget], ...]
    most_shards: int | None


def _parts(
    world: World,
    seen: Seen,
    *,
    owner: Tenant | None,
    pods: Iterable[Pod],
    blocked: bool,
    size: int,
    budgets: tuple[tuple[str, Budget], ...],
    most_shards: int | None,
) -> _Parts:
    spec, epoch = seen.session.spec, seen.session.status.epoch
    present = next((pod for pod in pods if pod.epoch == epoch), None)
    runtime = world.runtimes.get(present.uid) if present else None
    model, tier = world.models.get(spec.model), world.tiers.get(spec.tier)
    return _Parts(seen, owner, model, tier, present, runtime, blocked, size, budgets, most_shards)


_Translated = tuple[_Parts, plan.Session]


def _session(now: float, parts: _Parts) -> plan.Session:
    session = parts.seen.session
    status = session.status
    meta = session.meta
    owner, runtime, present = parts.owner, parts.runtime, parts.present
    held = status.placement
    phase = _phase(session, present, blocked=parts.blocked)
    return plan.Session(
        key=f"{meta.namespace}/{meta.name}",
        tier=session.spec.tier,
        request=_request(parts, phase),
        phase=phase,
        wish=_wish(parts, phase),
        created=clock.seconds(meta.created),
        since=_since(session, phase),
        tenant=owner.meta.name if owner else "",
        place=_place(held) if held else None,
        suspend=session.spec.suspend or pacing.idle(session, runtime),
        deleting=meta.deleting,
        save_bytes=runtime.unsaved_bytes if runtime else None,
        saved_bytes=runtime.snapshot.bytes if runtime and runtime.snapshot else 0,
        kernel_class=arch_in(status.snapshot.kernel_class) if status.snapshot else "",
        nomination=_nomination(status.nomination),
        not_before=pacing.not_before(session),
        avoid=pacing.avoid(session, now=now),
        budgets=_budgets(parts.budgets, present) if present else (),
    )


def _request(parts: _Parts, phase: plan.Phase) -> plan.Request:
    session, model = parts.seen.session, parts.model
    if parts.seen.template_problem:
        # It starts nothing, and need not be readable.
        session = replace(session, spec=replace(session.spec, template={}))
    held = session.status.placement
    if held is not None and (model is None or parts.seen.problem or phase in HOLDING):
        pod = parts.present
        beside = (
            wants.pod_resources(session.spec.template)
            if pod is None
            else (pod.cpu_milli, pod.memory_bytes)
        )
        return wants.held(held, model, beside=beside)
    return _written(session, parts)


def _wish(parts: _Parts, phase: plan.Phase) -> plan.Request | None:
    """What a session that runs is written to ask for, where it does not hold just that."""
    seen, held = parts.seen, parts.seen.session.status.placement
    running = phase in (plan.Phase.STARTING, plan.Phase.RUNNING)
    if held is None or not running or parts.model is None or seen.problem or seen.template_problem:
        return None
    found = _written(seen.session, parts)
    each, models = found.on_each(max(len(held.gpus), 1)), found.gpu_models
    just_that = not found.node_selector and all(
        (gpu.slices, gpu.share) == each
        and (not models or any(same_model(gpu.model, name) for name in models))
        for gpu in held.gpus
    )
    return None if just_that else found


def _written(session: Session, parts: _Parts) -> plan.Request:
    """What the session asks for by its spec, its model and its tier."""
    model = parts.model
    if model is None:
        return plan.Request(slices=1)
    share = wants.share_of(session, parts.tier, parts.owner)
    return wants.request(
        session,
        model,
        tier=parts.tier,
        share=share,
        slice_bytes=parts.size,
        most_shards=parts.most_shards,
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


def _budgets(budgets: tuple[tuple[str, Budget], ...], pod: Pod) -> tuple[str, ...]:
    """The disruption budgets that cover the session's pod."""
    return tuple(
        key for key, budget in budgets if budget.covers(namespace=pod.namespace, labels=pod.labels)
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


def _node(
    node: Node,
    gpu_node: GpuNode,
    *,
    strays: Mapping[int, int],
    taken: Taken,
    speed: Callable[[str], Speed | None],
) -> plan.Node:
    gpus = tuple(
        plan.Gpu(
            ordinal=gpu.ordinal,
            uuid=gpu.uuid,
            model=gpu.model,
            slices=_usable(node, gpu, stray=strays.get(gpu.ordinal, 0)),
            speed=speed(gpu.model),
            healthy=gpu.healthy,
            links=gpu.links,
            kernel_class=arch_of(gpu.model),
            mig=gpu.mig,
        )
        for gpu in gpu_node.gpus
    )
    return plan.Node(
        name=node.name,
        cpu_milli=max(node.cpu_milli - taken.cpu_milli, 0),
        memory_bytes=max(node.memory_bytes - taken.memory_bytes, 0),
        gpus=gpus,
        labels=node.labels,
        taints=tuple(plan.Taint(taint.key, taint.value, taint.effect) for taint in node.taints),
        schedulable=not node.cordoned,
        ready=node.ready,
        heard=not gpu_node.silent,
        draining=node.leaving,
        pods=max(node.pods - taken.pods, 0),
    )


def _usable(node: Node, gpu: Gpu, *, stray: int) -> int:
    """Slices that sessions can have: the kubelet counts, and the plugin has them in service."""
    return max(min(gpu.slices, node.gpu_slices.get(gpu.ordinal, 0)) - stray, 0)


def _strays(world: World, *, known: Container[str]) -> dict[str, dict[int, int]]:
    """Slices of living pods that no session's status speaks of, by node and ordinal."""
    found: dict[str, dict[int, int]] = {}
    for pod in world.pods.values():
        seen = world.sessions.get(pod.key) if pod.key in known else None
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
