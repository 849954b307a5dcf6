"""The running plugin: its threads, and the loop that brings facts, kubelet and pods together.

Once a second, or at once after an allocation. Each outside party may be away or slow without
holding up the others.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sojourn_deviceplugin import conduct, processes
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.core import STARTING, Node, Turn
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.kube import Access, Kube
from sojourn_deviceplugin.metrics import GrantGauges, Metrics, NodeGauges
from sojourn_deviceplugin.node import Publisher
from sojourn_deviceplugin.nvml import Nvml
from sojourn_deviceplugin.podresources import PodResources, PodResourcesError
from sojourn_deviceplugin.probe import Listener, Reader
from sojourn_deviceplugin.registration import Registrar

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
EAGER_SECONDS: Final = 0.25
"""While a grant waits for its pod: its session starts and wants its tier."""
EAGER_FOR_NS: Final = 30_000_000_000
CLAIMS_SECONDS: Final = 30.0
JOIN_SECONDS: Final = 2.0
DEAF_SECONDS: Final = 3.0


class Plugin:
    """Everything of one node. `start`, then `stop`; `run` in between is the caller's thread."""

    def __init__(self, config: Config, *, node_name: str, access: Access | None) -> None:
        """`access` None: no API server, so no GPUNode, no tiers, no events."""
        self.metrics = Metrics()
        self.node = Node(config)
        self.metrics.watch(NodeGauges(self.node.snapshot))
        self.metrics.watch(GrantGauges(self.node.snapshot, self.node.page))
        self.registrar = Registrar(self.node, self.metrics)
        self._reader = Reader(
            Nvml(process_names=config.process_names),
            known=self.node.uuids,
            every=config.probe_seconds,
            patience=config.nvml_patience_seconds,
        )
        self._listener = Listener(lambda: self._reader.latest().session)
        self._resources = PodResources(config.pod_resources)
        self.publisher = None
        if access is not None:
            self.publisher = Publisher(Kube(access), node_name, self.node.snapshot, self.metrics)
        self._claims_at = 0.0
        self._kubelet_error = ""
        self._heard_at = time.monotonic()
        self._silent = False
        self._pages: dict[int, dict[str, conduct.Seen]] = {}
        self._pids: dict[int, str] = {}
        self._greedy: set[tuple[int, str]] = set()
        self._invaded: set[int] = set()
        self._offenders: set[tuple[int, str]] = set()
        """Told of once: an event for each look would be a flood."""
        self._end = threading.Event()
        self._keeper = threading.Thread(target=self._keep_tidy, name="keeper", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        for thread in (self._reader, self._listener, self.registrar, self.publisher):
            if thread is not None:
                thread.start()
        self._keeper.start()

    def _keep_tidy(self) -> None:
        while not self._end.is_set():
            self.node.untidy.wait()
            self.node.untidy.clear()
            self.node.tidy()

    def end(self) -> None:
        """Ask the loop to end; for a signal handler."""
        self._end.set()

    def stop(self) -> None:
        """End the loop and the threads; those that hang in NVML are left behind."""
        self._end.set()
        for thread in (self.registrar, self.publisher, self._listener, self._reader):
            if thread is not None:
                thread.stop()
                thread.join(JOIN_SECONDS)
        self.node.untidy.set()
        self._keeper.join(JOIN_SECONDS)
        self._resources.close()
        self.node.close()

    def run(self, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Loop until asked to end (True), or until `until` says so between two rounds (False)."""
        while not self._end.is_set():
            self.tick()
            if until():
                return False
            self._end.wait(EAGER_SECONDS if self._somebody_waits() else TICK_SECONDS)
        return True

    def tick(self) -> None:
        """One round."""
        self._look_at_kubelet()  # first: what is granted decides what is foreign
        self._look_at_gpus()
        self._look_at_memory()
        self._look_at_conduct()
        if self.publisher is not None:
            for grant in self.node.promote(self.publisher.pods):
                log.info(
                    "promoted",
                    extra={
                        "gpu": grant.ordinal,
                        "pod": grant.holder and f"{grant.holder.namespace}/{grant.holder.pod}",
                        "priority": grant.tier.priority,
                    },
                )
            self.publisher.poke(waiting=self._somebody_waits())

    def _look_at_gpus(self) -> None:
        silent = self._reader.silent
        if self._deaf():
            return
        if not self._reader.fresh.is_set() and silent == self._silent:
            return
        self._reader.fresh.clear()
        self._silent = silent
        facts = self._reader.latest()
        if self.node.config.host_proc is not None:
            self.node.attribute(self._pods_of(facts, self.node.config.host_proc))
        xids = self._listener.drain()
        for xid in xids:
            self.metrics.xid(xid.uuid, xid.number)
            log.warning("XID", extra={"uuid": xid.uuid, "xid": xid.number})
        for turn in self.node.refresh(facts, xids):
            self._turned(turn)

    def _deaf(self) -> bool:
        """Whether nobody hears events yet: a GPU must not pass for healthy meanwhile.

        After a while it is judged all the same: NVML may have no events here.
        """
        facts, now = self._reader.latest(), time.monotonic()
        if facts.error or facts.session == self._listener.registered:
            self._heard_at = now
            return False
        return now - self._heard_at < DEAF_SECONDS

    def _pods_of(self, facts: NodeFacts, proc: Path) -> dict[int, str]:
        """Pod UIDs of the processes on GPUs; a process id is looked up while it is there."""
        pids = {process.pid for gpu in facts.gpus for process in gpu.processes}
        known = {pid: uid for pid, uid in self._pids.items() if pid in pids}
        for pid in pids - set(known):
            known[pid] = processes.pod_uid(processes.cgroup_of(pid, proc=proc))
        self._pids = known
        return known

    def _look_at_memory(self) -> None:
        """Report pods that use more than they were granted, once for each grant."""
        over = {(grant.ordinal, grant.slot): (grant, used) for grant, used in self.node.overuse()}
        self.metrics.overusing(len(over))
        for key in set(over) - self._greedy:
            grant, used = over[key]
            pod = f"{grant.holder.namespace}/{grant.holder.pod}" if grant.holder else ""
            extra = {"gpu": grant.ordinal, "pod": pod, "bytes": used, "slices": grant.slices}
            log.warning("uses more memory than granted", extra=extra)
            if self.publisher is not None:
                text = f"gpu-{grant.ordinal}: {pod} uses {used} bytes, over {grant.slices} slices"
                self.publisher.tell(reason="MemoryOverGrant", message=text, warning=True)
        self._greedy = set(over)
        self._tell_foreign()

    def _tell_foreign(self) -> None:
        """Say when slices go out of service for foreign memory, and when they are back."""
        facts, offers, _ = self.node.snapshot()
        withdrawn = {offer.gpu.ordinal: offer for offer in offers if offer.out}
        for ordinal in set(withdrawn) - self._invaded:
            offer = withdrawn[ordinal]
            gpu = facts.gpu(offer.gpu.uuid)
            who = sorted({p.name for p in gpu.processes if p.name}) if gpu else []
            text = f"gpu-{ordinal}: {offer.foreign_bytes} bytes in use above all grants"
            text += f", by {', '.join(who)}" if who else ""
            log.warning("foreign memory", extra={"gpu": ordinal, "detail": text})
            if self.publisher is not None:
                self.publisher.tell(reason="ForeignMemory", message=text, warning=True)
        for ordinal in self._invaded - set(withdrawn):
            log.info("foreign memory is gone", extra={"gpu": ordinal})
        self._invaded = set(withdrawn)

    def _turned(self, turn: Turn) -> None:
        after = turn.after
        self.metrics.turned(turn.ordinal, after.reason)
        log.log(
            logging.INFO if after.healthy else logging.WARNING,
            "GPU healthy" if after.healthy else "GPU unhealthy",
            extra={"gpu": turn.ordinal, "reason": after.reason, "detail": after.message},
        )
        starting = after.healthy and turn.before.reason == STARTING
        if self.publisher is not None and turn.before.reason != after.reason and not starting:
            reason = after.reason or "GpuHealthy"
            text = f"gpu-{turn.ordinal} ({turn.uuid}): {after.message or 'can be trusted'}"
            self.publisher.tell(reason=reason, message=text, warning=not after.healthy)

    def _look_at_conduct(self) -> None:
        """Report grants that computed under a higher tier's flag since the last look."""
        pages, now, limits = self.node.pages(), time.monotonic_ns(), self.node.limits
        names = {(g.ordinal, g.slot): g.holder for g in self.node.snapshot()[2]}
        for ordinal, after in pages.items():
            before = self._pages.get(ordinal, {})
            for offence in conduct.offences(before, after, now_ns=now, limits=limits):
                self.metrics.offended(ordinal, offence.steps)
                holder = names.get((ordinal, offence.slot))
                pod = f"{holder.namespace}/{holder.pod}" if holder else f"slot {offence.slot}"
                extra = {"gpu": ordinal, "pod": pod, "steps": offence.steps}
                log.warning("computed under a higher tier's flag", extra=extra)
                text = f"gpu-{ordinal}: {pod} computed {offence.steps} steps under a higher flag"
                if self.publisher is not None and (ordinal, offence.slot) not in self._offenders:
                    self.publisher.tell(reason="YieldIgnored", message=text, warning=True)
                self._offenders.add((ordinal, offence.slot))
        self._offenders &= set(names)
        self._pages = pages

    def _look_at_kubelet(self) -> None:
        try:
            listing = self._resources.listing()
            if time.monotonic() - self._claims_at > CLAIMS_SECONDS:
                self.node.claimed(self._resources.claimed_elsewhere())
                self._claims_at = time.monotonic()
        except PodResourcesError as error:
            self.metrics.failed("kubelet")
            if str(error) != self._kubelet_error:
                self._kubelet_error = str(error)
                log.warning("kubelet", extra={"error": str(error)})
            return
        self._kubelet_error = ""
        changes = self.node.reconcile(listing.held, listed_ns=listing.asked_ns)
        for what, grants in (
            ("grant over", changes.over),
            ("grant named", changes.named),
            ("grant adopted", changes.adopted),
        ):
            for grant in grants:
                holder = grant.holder and f"{grant.holder.namespace}/{grant.holder.pod}"
                extra = {"gpu": grant.ordinal, "slices": grant.slices, "pod": holder}
                log.info(what, extra=extra)

    def _somebody_waits(self) -> bool:
        now = time.monotonic_ns()
        _, _, grants = self.node.snapshot()
        return any(grant.tier.bytes == 0 and now - grant.made_ns < EAGER_FOR_NS for grant in grants)

    @property
    def ready(self) -> bool:
        """Whether NVML has been asked and the kubelet knows our resources."""
        return self.node.snapshot()[0].session > 0 and self.registrar.complete
