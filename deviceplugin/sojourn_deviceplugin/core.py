"""The node in memory: what every thread of the plugin shares, behind one lock.

Allocate and ListAndWatch read and write here and nowhere else: no NVML, no API server, no kubelet
is called with the lock held. Decisions are in the pure modules; this one applies them.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sojourn_api import arbiter, names

from sojourn_deviceplugin import conduct, health, mig, registry, slices
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin.attribution import Attribution
from sojourn_deviceplugin.config import Config, DeviceNodes
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts, Xid
from sojourn_deviceplugin.ledger import Changes, Grant, Held, Ledger
from sojourn_deviceplugin.offers import Offer, answer, refusal
from sojourn_deviceplugin.pods import SessionPod, tier_of
from sojourn_deviceplugin.slots import Slots

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
STARTING: Final = "Starting"
"""Reason of all GPUs until they have been looked at."""
SHARED_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class AllocationError(Exception):
    """The kubelet asks for what cannot be given; the text becomes the pod's message."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A GPU whose verdict changed, and how."""

    ordinal: int
    uuid: str
    before: health.Verdict
    after: health.Verdict


class Node:
    """All GPUs of this node."""

    def __init__(
        self,
        config: Config,
        *,
        boot: str | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.config = config
        self._clock = clock
        self._boot = boot or BOOT_ID.read_text().strip()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tidying = threading.Lock()
        self.untidy = threading.Event()
        self.judged = False
        """Whether the GPUs have been looked at once."""
        self._registry = registry.Registry(config.state_dir)
        self._known = self._registry.load()
        self._slots: dict[int, Slots] = {}
        self._ledger = Ledger()
        self._facts = NodeFacts(error="NVML has not been asked yet")
        self._offers: dict[int, Offer] = {}
        self._pools: dict[str, mig.Pool] = {}
        self._messages: dict[str, tuple[int, pb.ListAndWatchResponse]] = {}
        self._claimed: frozenset[str] = frozenset()
        self._attribution = Attribution()
        for gpu in self._known.values():
            self._open(gpu)
        with self._lock:
            waiting = health.Verdict(healthy=False, reason=STARTING, message=self._facts.error)
            for gpu in self._known.values():
                self._offer(Offer(gpu=gpu, verdict=waiting))

    def _open(self, gpu: registry.Known) -> None:
        slots = Slots(self.config.arbiter_dir / gpu.uuid, self.limits)
        self._slots[gpu.ordinal] = slots
        self._ledger.restore(slots.restore(gpu.ordinal), now_ns=self._clock())

    # ------------------------------------------------------------ for the gRPC threads

    def resources(self) -> tuple[str, ...]:
        """All resources, with healthy devices or without."""
        with self._lock:
            return tuple(self._messages)

    def ordinals(self) -> tuple[int, ...]:
        """GPUs that have a resource, healthy or not."""
        with self._lock:
            return tuple(self._offers)

    def offer(self, ordinal: int) -> Offer:
        """One GPU as it is offered now."""
        with self._lock:
            return self._offers[ordinal]

    def message(
        self, resource: str, *, after: int, unless: Callable[[], bool]
    ) -> tuple[int, pb.ListAndWatchResponse]:
        """The list and its version, at once if it is another than `after`, else when it changes.

        `unless` ends the wait; it is looked at after each `wake`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._messages[resource][0] != after or unless())
            return self._messages[resource]

    def wake(self) -> None:
        """Let waiting streams look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def allocate(self, resource: str, devices: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Give devices to a container; the kubelet has chosen them."""
        with self._lock:
            pool = self._pools.get(resource)
        if pool is None:
            ordinal = int(resource.removeprefix(names.RESOURCE_PREFIX))
            return self._allocate_slices(ordinal, frozenset(devices))
        try:
            return mig.answer(pool, devices, self.config)
        except LookupError as error:
            raise AllocationError(f"{resource}: {error}") from error

    def _allocate_slices(
        self, ordinal: int, wanted: frozenset[str]
    ) -> pb.ContainerAllocateResponse:
        with self._lock:
            offer = self._offers[ordinal]
            known = slices.id_set(offer.gpu.uuid, offer.gpu.slices)
            if not wanted or not wanted <= known:
                strange = sorted(wanted - known)[:3]
                raise AllocationError(f"{offer.resource}: no such slices: {', '.join(strange)}")
            if not offer.verdict.healthy:
                verdict = offer.verdict
                raise AllocationError(f"{offer.resource}: {verdict.reason}: {verdict.message}")
            slot = self._slots[ordinal].take(wanted)
            grant, over = self._ledger.allocate(
                ordinal=ordinal, devices=wanted, slot=slot, now_ns=self._clock()
            )
        self._drop(over)
        self.untidy.set()
        return answer(offer, grant, self.config)

    def tidy(self) -> None:
        """Make and remove arbiter pages, ahead of need and after it."""
        with self._tidying:
            for slots in tuple(self._slots.values()):
                slots.tidy()

    # ------------------------------------------------------------ for the main loop

    def refresh(self, facts: NodeFacts, xids: Iterable[Xid] = ()) -> list[Turn]:
        """Judge new facts and events; returns the GPUs whose verdict changed."""
        events: dict[str, list[int]] = {}
        for xid in xids:
            events.setdefault(xid.uuid, []).append(xid.number)
        with self._changed:
            self._facts = facts
            before = self._known
            self._enroll(facts)
            now = health.Situation(node=facts, boot=self._boot, probes=self.config.recovery_probes)
            turns = [
                turn
                for gpu in tuple(self._known.values())
                if (turn := self._judge(gpu, events.get(gpu.uuid, ()), now)) is not None
            ]
            self.judged = True
            self._remember(before)
            self._offer_instances()
            self._changed.notify_all()
        self.tidy()
        return turns

    def _enroll(self, facts: NodeFacts) -> None:
        found = registry.enroll(self._known, facts.gpus, self.config)
        for gpu in found.values():
            if gpu.uuid not in self._known:
                self._open(gpu)
        self._known = found

    def _remember(self, before: Mapping[str, registry.Known]) -> None:
        """Write down what changed; what only counts probes is not worth it."""
        if _lasting(self._known) != _lasting(before):
            self._registry.save(self._known)

    def _judge(
        self, gpu: registry.Known, xids: Iterable[int], now: health.Situation
    ) -> Turn | None:
        facts = self._facts.gpu(gpu.uuid)
        state, verdict = health.judge(health.condemn(gpu.health, xids, now), facts, now)
        gpu = replace(gpu, health=state)
        if facts is not None and not facts.error and not any(self._ledger.of(gpu.ordinal)):
            gpu = registry.replan(gpu, facts, self.config)
        self._known[gpu.uuid] = gpu
        if gpu.uuid in self._claimed:
            text = "another device plugin offers this GPU; take it out of one of the two"
            verdict = health.Verdict(healthy=False, reason="OfferedTwice", message=text)
        refused = refusal(gpu)
        if refused is not None:
            verdict, gpu = refused, replace(gpu, slices=0)  # not even as unhealthy ones
        before = self._offers.get(gpu.ordinal)
        self._offer(self._made(gpu, facts, verdict, before))
        if before is not None and before.verdict == verdict:
            return None
        unknown = health.Verdict(healthy=False)
        was = before.verdict if before else unknown
        return Turn(ordinal=gpu.ordinal, uuid=gpu.uuid, before=was, after=verdict)

    def _made(
        self,
        gpu: registry.Known,
        facts: GpuFacts | None,
        verdict: health.Verdict,
        before: Offer | None,
    ) -> Offer:
        if facts is None or facts.error:
            return replace(before, gpu=gpu, verdict=verdict) if before else Offer(gpu, verdict)
        grants = tuple(self._ledger.of(gpu.ordinal))
        foreign = self._attribution.foreign(grants, facts, slice_bytes=gpu.slice_bytes)
        peers = (self._known[uuid].ordinal for uuid in facts.links if uuid in self._known)
        return Offer(
            gpu=gpu,
            verdict=verdict,
            numa=facts.numa,
            out=slices.out_of_service(
                gpu.ids,
                held=self._ledger.held(gpu.ordinal),
                kept=before.out if before else (),
                wanted=foreign.slices,
            ),
            foreign_bytes=foreign.bytes,
            links=tuple(sorted(peers)),
            mig=facts.mig,
            nodes=self._nodes(facts),
        )

    def _nodes(self, facts: GpuFacts) -> tuple[str, ...]:
        if self.config.device_nodes is DeviceNodes.NONE:
            return ()
        wanted = (f"/dev/nvidia{facts.minor}", *SHARED_NODES)
        return tuple(node for node in wanted if Path(node).exists())

    def _offer(self, offer: Offer) -> None:
        self._offers[offer.gpu.ordinal] = offer
        self._publish(offer.resource, offer.message())

    def _offer_instances(self) -> None:
        """MIG instances as they are now; a profile without any keeps its resource, empty."""
        healthy = {o.gpu.uuid for o in self._offers.values() if o.verdict.healthy}
        if not self._facts.error:
            self._pools = mig.pools(self._facts.gpus, healthy=healthy, before=self._pools)
        else:
            self._pools = {name: pool.sick() for name, pool in self._pools.items()}
        for name, pool in self._pools.items():
            self._publish(name, pool.message())

    def _publish(self, resource: str, new: pb.ListAndWatchResponse) -> None:
        """The kubelet hears of it only if its list changes."""
        version, message = self._messages.get(resource, (0, None))
        if new != message:
            self._messages[resource] = (version + 1, new)

    def reconcile(self, held: Held, *, listed_ns: int) -> Changes:
        """Take over the kubelet's list of who holds what."""
        with self._changed:
            changes = self._ledger.reconcile(held, listed_ns=listed_ns)
            if changes != Changes():
                self._offer_again()
        self._drop(changes.over)
        self.tidy()
        return changes

    def _offer_again(self) -> None:
        """What counts as foreign depends on what is granted."""
        for offer in tuple(self._offers.values()):
            facts = self._facts.gpu(offer.gpu.uuid)
            self._offer(self._made(offer.gpu, facts, offer.verdict, offer))
        self._changed.notify_all()

    def _drop(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            if grant.slot:
                self._slots[grant.ordinal].drop(grant.slot)

    def promote(self, pods: Mapping[tuple[str, str], SessionPod]) -> list[Grant]:
        """Give grants the tiers of their pods (by namespace and name); returns what changed."""
        changed = []
        with self._lock:
            self._attribution.uids = {key: pod.uid for key, pod in pods.items() if pod.uid}
            for grant in tuple(self._ledger.grants):
                if grant.holder is None or not grant.slot:
                    continue
                pod = pods.get((grant.holder.namespace, grant.holder.pod))
                size = self._offers[grant.ordinal].gpu.slice_bytes
                tier = tier_of(grant, pod, slice_bytes=size)
                if tier != grant.tier:
                    self._slots[grant.ordinal].promote(grant.slot, tier)
                    changed.append(self._ledger.promote(grant, tier))
        return changed

    def attribute(self, pids: Mapping[int, str]) -> None:
        """Pod UIDs of the processes on GPUs, by host process id, as of the next judgement."""
        with self._lock:
            self._attribution.pids = pids

    def overuse(self) -> list[tuple[Grant, int]]:
        """Grants whose pods use more memory than granted, and how much; empty if unknown."""
        found = []
        with self._lock:
            for offer in self._offers.values():
                facts = self._facts.gpu(offer.gpu.uuid)
                if facts is not None:
                    grants = tuple(self._ledger.of(offer.gpu.ordinal))
                    size = offer.gpu.slice_bytes
                    found += self._attribution.over(grants, facts, slice_bytes=size)
        return found

    def claimed(self, uuids: Iterable[str]) -> None:
        """GPUs that another plugin offers to the kubelet, as of the next judgement."""
        self._claimed = frozenset(uuids)

    def close(self) -> None:
        """Let go of the files."""
        for slots in self._slots.values():
            slots.close()

    # ------------------------------------------------------------ for reports

    def uuids(self) -> tuple[str, ...]:
        """All known GPUs, there or not."""
        with self._lock:
            return tuple(self._known)

    def snapshot(self) -> tuple[NodeFacts, tuple[Offer, ...], tuple[Grant, ...]]:
        """Everything at one moment."""
        with self._lock:
            offers = tuple(self._offers[o] for o in sorted(self._offers))
            return self._facts, offers, tuple(self._ledger.grants)

    def pages(self) -> dict[int, dict[str, conduct.Seen]]:
        """The pages of all grants, by GPU and slot."""
        found: dict[int, dict[str, conduct.Seen]] = {}
        for grant in self.snapshot()[2]:
            page = self.page(grant)
            if page is not None:
                seen = conduct.Seen(priority=grant.tier.priority, page=page)
                found.setdefault(grant.ordinal, {})[grant.slot] = seen
        return found

    @property
    def limits(self) -> arbiter.Limits:
        """What readers of the pages go by."""
        return arbiter.Limits(
            stale_ns=self.config.stale_milliseconds * 1_000_000,
            hold_ns=self.config.hold_seconds * 1_000_000_000,
        )

    def page(self, grant: Grant) -> arbiter.PageState | None:
        """The arbiter page of a grant, None if it has none or its pod spoilt it."""
        return self._slots[grant.ordinal].page(grant.slot) if grant.slot else None


def _lasting(known: Mapping[str, registry.Known]) -> list[registry.Known]:
    return [replace(gpu, health=replace(gpu.health, good=0)) for gpu in known.values()]
