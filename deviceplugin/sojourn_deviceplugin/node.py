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
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from sojourn_api import names
from sojourn_api.objects import Condition

from sojourn_deviceplugin import gpunode
from sojourn_deviceplugin.kube import METADATA_ONLY, ApiError, Kube
from sojourn_deviceplugin.metrics import Metrics, Snapshot
from sojourn_deviceplugin.pods import SessionPod, session_pod

log = logging.getLogger(__name__)

GPUNODES: Final = f"/apis/{names.API_VERSION}/gpunodes"
EVENTS: Final = "/api/v1/namespaces/default/events"
"""Where the API server keeps events on objects without a namespace."""
RENEW_SECONDS: Final = 60.0
"""An unchanged status is written again after this long: somebody may have deleted the object."""
PODS_SECONDS: Final = 15.0
"""How often annotations are read while nobody waits for a promotion."""
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
        pace: float = 1.0,
    ) -> None:
        """At most one round of calls in `pace` seconds."""
        super().__init__(name="publisher", daemon=True)
        self._kube = kube
        self._name = node_name
        self._snapshot = snapshot
        self._metrics = metrics
        self._pace = pace
        self._poked = threading.Event()
        self._end = threading.Event()
        self._events: deque[dict[str, Any]] = deque(maxlen=WAITING_EVENTS)
        self._written: dict[str, Any] = {}
        self._written_at = 0.0
        self._pods_at = 0.0
        self._condition = Condition(names.READY, "Unknown", "", "")
        self._last_error = ""
        self.pods: dict[tuple[str, str], SessionPod] = {}

    def poke(self, *, waiting: bool = False) -> None:
        """Look again soon; `waiting`: a grant waits for its pod's annotations."""
        if waiting:
            self._pods_at = 0.0
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
                self._last_error = ""
            except ApiError as error:
                self._failed(error)
            self._end.wait(self._pace)
        self._kube.close()

    def _failed(self, error: ApiError) -> None:
        self._metrics.failed("apiserver")
        if str(error) != self._last_error:
            self._last_error = str(error)
            log.warning("API server", extra={"error": str(error)})

    def round(self) -> None:
        """Everything that is due."""
        if time.monotonic() - self._pods_at > PODS_SECONDS:
            self._read_pods()
            self._pods_at = time.monotonic()
        self._write()
        while self._events:
            event = self._events[0]
            self._send(event)
            if self._events and self._events[0] is event:  # else it made room for newer ones
                self._events.popleft()

    def _send(self, event: dict[str, Any]) -> None:
        try:
            self._kube.call("POST", EVENTS, body=event)
        except ApiError as error:
            if error.status != http.HTTPStatus.FORBIDDEN:
                raise
            self._failed(error)  # without the right to send events all else must go on

    def _read_pods(self) -> None:
        selector = quote(f"spec.nodeName={self._name}")
        answer = self._kube.call(
            "GET", f"/api/v1/pods?fieldSelector={selector}", accept=METADATA_ONLY
        )
        found = (session_pod(item) for item in answer.get("items") or ())
        self.pods = {(pod.namespace, pod.name): pod for pod in found if pod is not None}

    def _write(self) -> None:
        facts, offers, grants = self._snapshot()
        self._condition = _moved(self._condition, gpunode.ready(facts, offers))
        status = gpunode.status(facts, offers, grants, condition=self._condition)
        due = time.monotonic() - self._written_at > RENEW_SECONDS
        if status == self._written and not due:
            return
        path = f"{GPUNODES}/{self._name}"
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GPUNode",
            "metadata": {"name": self._name},
        }
        if due:
            self._kube.apply(path, body, manager=names.MANAGER_DEVICEPLUGIN)
        self._kube.apply(
            f"{path}/status", body | {"status": status}, manager=names.MANAGER_DEVICEPLUGIN
        )
        self._written, self._written_at = status, time.monotonic()


def _moved(before: Condition, after: Condition) -> Condition:
    """The new condition, with the time since when its status is what it is."""
    same = before.status == after.status and before.last_transition
    return replace(after, last_transition=before.last_transition if same else _now())


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
