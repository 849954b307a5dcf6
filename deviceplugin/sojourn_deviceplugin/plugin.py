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

from sojourn_api.access import Access

from sojourn_deviceplugin import memorylimits, mps, processes
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.core import Node
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.gauges import GrantGauges, NodeGauges
from sojourn_deviceplugin.kube import Kube
from sojourn_deviceplugin.limits import Limiter
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.news import News
from sojourn_deviceplugin.node import Publisher
from sojourn_deviceplugin.nvml import Nvml
from sojourn_deviceplugin.podresources import PodResources, PodResourcesError
from sojourn_deviceplugin.probe import Listener, Reader
from sojourn_deviceplugin.registration import Registrar
from sojourn_deviceplugin.reports import Reports
from sojourn_deviceplugin.slim import slim
from sojourn_deviceplugin.warden import Warden
from sojourn_deviceplugin.xids import meaning, restart

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
EAGER_SECONDS: Final = 0.25
"""While a grant waits for its pod: its session starts and wants its tier."""
EAGER_FOR_NS: Final = 30_000_000_000
CLAIMS_SECONDS: Final = 30.0
MPS_SECONDS: Final = 10.0
JOIN_SECONDS: Final = 2.0
DEAF_SECONDS: Final = 3.0


class Plugin:
    """Everything of one node. `start`, then `stop`; `run` in between is the caller's thread."""

    def __init__(self, config: Config, *, node_name: str, access: Access | None) -> None:
        """`access` None: no API server, so no GPUNode, no tiers, no events."""
        self.metrics = Metrics()
        self.node = Node(config)
        self.metrics.watch(NodeGauges(self.node.snapshot))
        self._reports = Reports(self.node)
        self._warden = Warden(self.node, self._reports, self.metrics, self._tell)
        self.metrics.watch(
            GrantGauges(
                self.node.snapshot,
                self.node.page,
                enforced=self._reports.enforced,
                uses=self._reports.uses,
                waited=self._warden.waited,
            )
        )
        self.registrar = Registrar(self.node, self.metrics)
        self._limiter = Limiter(memorylimits, self._reports.caps, root=config.host_cgroup)
        self._reader = Reader(
            Nvml(process_names=config.process_names, process_loads=config.host_proc is not None),
            known=self.node.uuids,
            every=config.probe_seconds,
            patience=config.nvml_patience_seconds,
            then=self._limiter.keep,
        )
        self._listener = Listener(lambda: self._reader.latest().session)
        self._resources = PodResources(config.pod_resources)
        self.publisher = None
        if access is not None:
            self.publisher = Publisher(
                Kube(access),
                node_name,
                self.node.snapshot,
                self.metrics,
                page=self.node.page,
                sees_processes=config.host_proc is not None,
                namespace=access.namespace,
            )
        self._claims_at = 0.0
        self._kubelet_error = ""
        self._heard_at = time.monotonic()
        self._silent = False
        self._mps_at = 0.0
        self._pids: dict[int, str] = {}
        self._news = News(self._tell, self.metrics)
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
        starting = True
        while not self._end.is_set():
            self.tick()
            if starting and self.ready:
                slim()
                log.info("start is over, memory that it needed is released")
                starting = False
            if until():
                return False
            self._end.wait(EAGER_SECONDS if self._somebody_waits() else TICK_SECONDS)
        return True

    def tick(self) -> None:
        """One round."""
        self._look_at_kubelet()  # first: what is granted decides what is foreign
        self._look_at_gpus()
        self._news.foreign(self.node.snapshot()[1])
        self._look_at_mps()
        self._reports.capped = self._limiter.standing
        standing = self._warden.look()
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
            self.publisher.offenders = standing
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
            extra = {"uuid": xid.uuid, "xid": xid.number, "meaning": meaning(xid.number)}
            log.warning("XID", extra=extra | {"restart": restart(xid.number)})
        self._news.nvml(facts)
        for turn in self.node.refresh(facts, xids):
            self._news.turned(turn)

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

    def _tell(self, *, reason: str, message: str, warning: bool) -> None:
        """An event on the Kubernetes node, where there is an API server."""
        if self.publisher is not None:
            self.publisher.tell(reason=reason, message=message, warning=warning)

    def _look_at_mps(self) -> None:
        """Now and then: the daemon writes a line for everybody who knocks."""
        pipes, now = self.node.config.mps_pipe_dir, time.monotonic()
        if pipes is not None and now >= self._mps_at:
            self._mps_at = now + MPS_SECONDS
            self.node.mps = mps.answers(pipes)

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
        changes = self.node.reconcile(
            listing.held, listed_ns=listing.asked_ns, patient=self.registrar.kubelet_is_new
        )
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
