"""The node in memory: what every thread of the plugin shares, behind one lock.

Allocate and ListAndWatch read and write here and nowhere else: no NVML, no API server, no kubelet
is called with the lock held. Decisions are in the pure modules; this one applies them.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sojourn_api import arbiter, names

from sojourn_deviceplugin import health, mig, offering, profiles, registry, slices
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin.attribution import Attribution
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import NodeFacts, Xid
from sojourn_deviceplugin.forgetful import Forgotten, Listed
from sojourn_deviceplugin.ledger import Changes, Grant, Held, Keys, Ledger
from sojourn_deviceplugin.lists import Lists
from sojourn_deviceplugin.offering import Turn
from sojourn_deviceplugin.offers import Offer, Snapshot, answer, refusal
from sojourn_deviceplugin.pods import SessionPod, tier_of
from sojourn_deviceplugin.slots import Slots

log = logging.getLogger(__name__)

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
STARTING: Final = "Starting"
"""Reason of all GPUs until they have been looked at."""


class AllocationError(Exception):
    """The kubelet asks for what cannot be given; the text becomes the pod's message."""


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
        self._tidying = threading.Lock()
        self.untidy = threading.Event()
        self.judged = False
        """Whether the GPUs have been looked at once."""
        self._registry = registry.Registry(config.state_dir)
        self._known = self._registry.load()
        self._written = offering.lasting(self._known.values())
        self._complaints: set[str] = set()
        self._slots: dict[int, Slots] = {}
        self._ledger = Ledger()
        self._facts = NodeFacts(error="NVML has not been asked yet")
        self._offers: dict[int, Offer] = {}
        self._profiles = profiles.Profiles(config.state_dir)
        self._pools = {names.mig_resource(name): mig.Pool(name) for name in self._profiles.load()}
        self.lists = Lists()
        self._claimed: frozenset[str] = frozenset()
        self._forgotten = Forgotten()
        self.attribution = Attribution()
        """Replaced as a whole; any thread may read it."""
        self.mps = False
        """Whether the MPS daemon answers."""
        for gpu in self._known.values():
            self._open(gpu)
        with self._lock:
            waiting = health.Verdict(healthy=False, reason=STARTING, message=self._facts.error)
            for gpu in self._known.values():
                self._offer(Offer(gpu=gpu, verdict=waiting))
            for name, pool in self._pools.items():
                self.lists.publish(name, pool.message())

    def _open(self, gpu: registry.Known) -> None:
        slots = Slots(self.config.arbiter_dir / gpu.uuid, self.limits)
        self._slots[gpu.ordinal] = slots
        self._ledger.restore(slots.restore(gpu.ordinal), now_ns=self._clock())

    # ------------------------------------------------------------ for the gRPC threads

    def ordinals(self) -> tuple[int, ...]:
        """GPUs that have a resource, healthy or not."""
        with self._lock:
            return tuple(self._offers)

    def offer(self, ordinal: int) -> Offer:
        """One GPU as it is offered now."""
        with self._lock:
            return self._offers[ordinal]

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
            self._refuse_unlisted(offer, wanted)
            slot = self._slots[ordinal].take(wanted, mps=self.mps)
            grant, over = self._ledger.allocate(
                ordinal=ordinal, devices=wanted, slot=slot, now_ns=self._clock(), mps=self.mps
            )
        self._drop(over)
        self.untidy.set()
        return answer(offer, grant, self.config)

    def _refuse_unlisted(self, offer: Offer, wanted: frozenset[str]) -> None:
        """A kubelet without its checkpoint offers again what running pods have."""
        for grant in self._ledger.of(offer.gpu.ordinal):
            if grant.devices & wanted and self._forgotten.alive(grant):
                whose = f"{grant.holder.namespace}/{grant.holder.pod}" if grant.holder else "a pod"
                raise AllocationError(
                    f"{offer.resource}: {len(grant.devices & wanted)} of these slices are in use "
                    f"by {whose}, which the kubelet has forgotten; they are free when it has ended"
                )

    def unlisted(self, resource: str) -> frozenset[str]:
        """Devices that would be refused for that."""
        with self._lock:
            if resource in self._pools:
                return frozenset()
            ordinal = int(resource.removeprefix(names.RESOURCE_PREFIX))
            lost = filter(self._forgotten.alive, self._ledger.of(ordinal))
            return frozenset().union(*(grant.devices for grant in lost))

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
        with self._lock:
            self._facts = facts
            self._enroll(facts)
            now = health.Situation(node=facts, boot=self._boot, probes=self.config.recovery_probes)
            turns = [
                turn
                for gpu in tuple(self._known.values())
                if (turn := self._judge(gpu, events.get(gpu.uuid, ()), now)) is not None
            ]
            self.judged = True
            self._remember()
            self._offer_instances()
        self.tidy()
        return turns

    def _enroll(self, facts: NodeFacts) -> None:
        found = registry.enroll(self._known, facts.gpus, self.config)
        for gpu in found.values():
            if gpu.uuid not in self._known:
                self._open(gpu)
        self._known = found

    def _remember(self) -> None:
        """Write down what changed; what only counts probes is not worth it.

        A full disk must not end a plugin that knows a GPU to be condemned: its successor would read
        that all is well. Until the file can be written, this one remembers. A new GPU is another
        matter: its ordinal, once offered, must never become another's.
        """
        lasting = offering.lasting(self._known.values())
        if lasting != self._written:
            try:
                self._registry.save(self._known)
            except registry.RegistryError as error:
                if {gpu.uuid for gpu in lasting} != {gpu.uuid for gpu in self._written}:
                    raise
                self._complain(error)
            else:
                self._written = lasting
                self._complaints.clear()

    def _complain(self, error: registry.RegistryError) -> None:
        if str(error) not in self._complaints:
            self._complaints.add(str(error))
            log.error("not saved, a restart would forget it", extra={"error": str(error)})

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
        self._offer(self._made(gpu, verdict))
        return offering.turned(gpu, before, verdict)

    def _made(self, gpu: registry.Known, verdict: health.Verdict) -> Offer:
        around = offering.Surroundings(self._known, self.attribution, self.config)
        return around.offer(
            gpu,
            self._facts.gpu(gpu.uuid),
            verdict,
            before=self._offers.get(gpu.ordinal),
            grants=tuple(self._ledger.of(gpu.ordinal)),
        )

    def _offer(self, offer: Offer) -> None:
        self._offers[offer.gpu.ordinal] = offer
        self.lists.publish(offer.resource, offer.message())

    def _offer_instances(self) -> None:
        """MIG instances as they are now; a profile without any keeps its resource, empty."""
        healthy = {o.gpu.uuid for o in self._offers.values() if o.verdict.healthy}
        if not self._facts.error:
            self._pools = mig.pools(self._facts.gpus, healthy=healthy, before=self._pools)
        else:
            self._pools = {name: pool.sick() for name, pool in self._pools.items()}
        for name, pool in self._pools.items():
            self.lists.publish(name, pool.message())
        try:
            self._profiles.save(pool.profile for pool in self._pools.values())
        except registry.RegistryError as error:
            self._complain(error)

    def kubelet_restarted(self) -> None:
        """It may have forgotten everything: what lives is not given again until it is listed."""
        living = self._living({})
        with self._lock:
            self._forgotten.restarted(self._ledger.grants, living=living)

    def _living(self, listed: Listed) -> Keys:
        """Grants that are not in the list, though a process has their page locked."""
        absent = (g for g in self.snapshot()[2] if (g.ordinal, g.devices) not in listed)
        pages = ((grant, self.page(grant)) for grant in absent)
        return frozenset(grant.key for grant, page in pages if page and page.locked)

    def reconcile(self, held: Held, *, listed_ns: int, patient: bool = False) -> Changes:
        """Take over the kubelet's list of who holds what; `patient` with one that just started."""
        listed = {(ordinal, devices) for (_, ordinal), devices in held.items()}
        living = self._living(listed)
        with self._lock:
            grants = self._ledger.grants
            self._forgotten.listed(listed, grants, living=living, patient=patient)
            spared = self._forgotten.spared
            changes = self._ledger.reconcile(held, listed_ns=listed_ns, spared=spared)
            if changes != Changes():
                self._offer_again()
        self._drop(changes.over)
        self.tidy()
        return changes

    def _offer_again(self) -> None:
        """What counts as foreign depends on what is granted."""
        for offer in tuple(self._offers.values()):
            self._offer(self._made(offer.gpu, offer.verdict))

    def _drop(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            if grant.slot:
                self._slots[grant.ordinal].drop(grant.slot)

    def promote(self, pods: Mapping[tuple[str, str], SessionPod]) -> list[Grant]:
        """Give grants the tiers of their pods (by namespace and name); returns what changed."""
        changed = []
        with self._lock:
            uids = {name: pod.uid for name, pod in pods.items() if pod.uid}
            self.attribution = replace(self.attribution, uids=uids)
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
            self.attribution = replace(self.attribution, pids=pids)

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

    def snapshot(self) -> Snapshot:
        """Everything at one moment."""
        with self._lock:
            offers = tuple(self._offers[o] for o in sorted(self._offers))
            return self._facts, offers, tuple(self._ledger.grants)

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
