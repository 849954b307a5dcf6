"""Talks with the API server: writes the GPUNode, sends events, reads the annotations of our pods.

A thread of its own with a connection of its own, so that nothing of the kubelet's ever waits for
it. While the API server is away it keeps trying, with the newest status only.
"""

import datetime as dt
import http
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from sojourn_api import names, render
from sojourn_api.arbiter import PageState
from sojourn_api.objects import Condition, Offender

from sojourn_deviceplugin import allocators, gpunode, load, offenders
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.figures import Figures, Steady
from sojourn_deviceplugin.heartbeat import Heartbeat, NoNodeError
from sojourn_deviceplugin.kube import METADATA_ONLY, ApiError, Kube
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.offers import Offer, Snapshot
from sojourn_deviceplugin.pods import SessionPod, session_pod

log = logging.getLogger(__name__)

GPUNODES: Final = f"/apis/{names.API_VERSION}/gpunodes"
EVENTS: Final = "/api/v1/namespaces/default/events"
"""Where the API server keeps events on objects without a namespace."""
REWRITE_SECONDS: Final = 60.0
"""An unchanged status is written again after this long: somebody may have deleted the object."""
PODS_SECONDS: Final = 15.0
"""How often annotations are read while nobody waits for a promotion."""
ROUND: Final = "a round"
LEASE: Final = "the Lease"
EVENT: Final = "an event"
WAITING_EVENTS: Final = 100


class Publisher(threading.Thread):
    """`poke` when something may have changed; `pods` is what was read last."""

    def __init__(
        self,
        kube: Kube,
        node_name: str,
        snapshot: Callable[[], Snapshot],
        metrics: Metrics,
        *,
        page: Callable[[Grant], PageState | None] = lambda _: None,
        sees_processes: bool = False,
        namespace: str = "",
        pace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most one round of calls in `pace` seconds; `page` tells what a grant's pod wrote.

        `namespace` is where the sign of life is written, empty for nowhere.
        """
        super().__init__(name="publisher", daemon=True)
        self._kube = kube
        self._name = node_name
        self._heartbeat = Heartbeat(kube, node_name, namespace=namespace)
        self._snapshot = snapshot
        self._metrics = metrics
        self._page = page
        self._sees = sees_processes
        self._pace = pace
        self._clock = clock
        self._poked = threading.Event()
        self._end = threading.Event()
        self._events: deque[dict[str, Any]] = deque(maxlen=WAITING_EVENTS)
        self._written: dict[str, Any] = {}
        self._written_at = float("-inf")
        self._pods_at = float("-inf")
        self._loads: Mapping[str, load.Means] = {}
        self._loads_at = clock()
        self._steady = Steady()
        self._condition = Condition(names.READY, "Unknown", "", "")
        self._kept = Condition(names.GRANTS_KEPT, "Unknown", "", "")
        self._complaints: dict[str, str] = {}
        """What was logged last of each thing that does not work."""
        self.pods: dict[tuple[str, str], SessionPod] = {}
        self.offenders: tuple[Offender, ...] = ()
        """Who stands accused, as of the next write."""

    def poke(self, *, waiting: bool = False) -> None:
        """Look again soon; `waiting`: a grant waits for its pod's annotations."""
        if waiting:
            self._pods_at = float("-inf")
        self._poked.set()

    def tell(self, *, reason: str, message: str, warning: bool) -> None:
        """Send an event on the Kubernetes node; the oldest are lost when none can be sent."""
        now = _now()
        event = {
            "metadata": {"generateName": f"{self._name}-"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._name},
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if warning else "Normal",
            "source": {"component": names.MANAGER_DEVICEPLUGIN, "host": self._name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._events.append(event)
        self._poked.set()

    def stop(self) -> None:
        self._end.set()
        self._poked.set()

    def run(self) -> None:
        while not self._end.is_set():
            self._poked.wait(self._pace)
            self._poked.clear()
            try:
                self.round()
                self._complaints.pop(ROUND, None)
            except (ApiError, NoNodeError) as error:
                self._failed(ROUND, error)
            self._end.wait(self._pace)
        self._kube.close()

    def _failed(self, what: str, error: Exception) -> None:
        self._metrics.failed("apiserver")
        if self._complaints.get(what) != str(error):
            self._complaints[what] = str(error)
            log.warning("API server", extra={"error": str(error)})

    def round(self) -> None:
        """Everything that is due."""
        if self._clock() - self._pods_at > PODS_SECONDS:
            self._read_pods()
            self._pods_at = self._clock()
        self._write()
        self._say_alive()
        while self._events:
            event = self._events[0]
            self._send(event)
            if self._events and self._events[0] is event:  # else it made room for newer ones
                self._events.popleft()

    def _say_alive(self) -> None:
        """After the status: whoever hears of us again finds what is true now."""
        try:
            if self._heartbeat.beat(now=self._clock()):
                self._complaints.pop(LEASE, None)
        except ApiError as error:
            if not error.status:
                raise
            self._failed(LEASE, error)  # the chart of an earlier release grants none

    def _send(self, event: dict[str, Any]) -> None:
        try:
            self._kube.call("POST", EVENTS, body=event)
            self._complaints.pop(EVENT, None)
        except ApiError as error:
            if error.status != http.HTTPStatus.FORBIDDEN:
                raise
            self._failed(EVENT, error)  # without the right to send events all else must go on

    def _read_pods(self) -> None:
        selector = quote(f"spec.nodeName={self._name}")
        answer = self._kube.call(
            "GET", f"/api/v1/pods?fieldSelector={selector}", accept=METADATA_ONLY
        )
        found = (session_pod(item) for item in answer.get("items") or ())
        self.pods = {(pod.namespace, pod.name): pod for pod in found if pod is not None}

    def _write(self) -> None:
        due = self._is_due()
        if due:
            self._condition = self._introduce() or self._condition
        facts, offers, grants = self._snapshot()
        self._condition = _moved(self._condition, gpunode.ready(facts, offers))
        figures = self._steady.tell(self._figures(facts, offers, grants), now=self._clock())
        status = gpunode.status(facts, offers, grants, condition=self._condition, figures=figures)
        self._kept = _moved(self._kept, offenders.kept(self.offenders, sees=self._sees))
        status["conditions"] += render.conditions_to_raw([self._kept])
        if self.offenders:
            status["offenders"] = render.offenders_to_raw(self.offenders[: gpunode.MOST])
        if status == self._written and not due:
            return
        try:
            self._apply({"name": self._name}, {"status": status}, subresource="/status")
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                self._written_at = float("-inf")  # somebody deleted the object
            raise
        self._written, self._written_at = status, self._clock()

    def _is_due(self) -> bool:
        """Whether to write whatever is known: others may have said meanwhile that we are gone."""
        now = self._clock()
        return now - self._written_at > REWRITE_SECONDS or self._heartbeat.ran_out(now=now)

    def _introduce(self) -> Condition | None:
        """See that the object is there, and whose; what its Ready says, by whomever."""
        self._heartbeat.find_node()
        meta: dict[str, Any] = {"name": self._name}
        if self._heartbeat.owners:
            meta["ownerReferences"] = self._heartbeat.owners
        there = self._apply(meta, {})
        found = there.get("status", {}).get("conditions", ())
        ready = next((one for one in found if one.get("type") == names.READY), None)
        if ready is None:
            return None
        since = ready.get("lastTransitionTime", "")
        return Condition(names.READY, ready["status"], "", "", 0, since)

    def _apply(
        self, meta: Mapping[str, Any], rest: Mapping[str, Any], *, subresource: str = ""
    ) -> dict[str, Any]:
        body = {"apiVersion": names.API_VERSION, "kind": "GPUNode", "metadata": meta, **rest}
        path = f"{GPUNODES}/{self._name}{subresource}"
        return self._kube.apply(path, body, manager=names.MANAGER_DEVICEPLUGIN)

    def _figures(
        self, facts: NodeFacts, offers: Iterable[Offer], grants: tuple[Grant, ...]
    ) -> Figures:
        """What never stands still, as it is now."""
        now, offers = self._clock(), tuple(offers)
        self._loads = load.folded(self._loads, facts, seconds=now - self._loads_at)
        self._loads_at = now
        at_ns = time.monotonic_ns()  # the pages' clock
        inside = {
            offer.gpu.ordinal: allocators.uses(offer, grants, self._page, now_ns=at_ns)
            for offer in offers
        }
        return Figures(
            loads={
                offer.gpu.ordinal: self._loads[offer.gpu.uuid].rounded()
                for offer in offers
                if offer.gpu.uuid in self._loads
            },
            allocators={ordinal: uses for ordinal, uses in inside.items() if uses},
            foreign={offer.gpu.ordinal: offer.foreign_bytes for offer in offers},
        )


def _moved(before: Condition, after: Condition) -> Condition:
    """The new condition, with the time since when its status is what it is."""
    same = before.status == after.status and before.last_transition
    return replace(after, last_transition=before.last_transition if same else _now())


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
