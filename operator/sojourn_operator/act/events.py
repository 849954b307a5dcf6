"""Events: one word and one sentence on an object, each fact told once, repeats counted.

An event's name is made from what it tells, so a restarted operator cannot tell it twice; the same
words at a later start of the session raise the count of the first. Failing to tell stops nothing.
"""

import logging
import threading
from collections import OrderedDict
from typing import Any, Final

from sojourn_api.names import LABEL_EPOCH, MANAGER_OPERATOR

from sojourn_operator import clock, metrics
from sojourn_operator.act.api import Api, ApiError, ExistsError
from sojourn_operator.kinds import EVENTS
from sojourn_operator.session.note import Note

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
MAX_MESSAGE: Final = 1024
"""The API server's bound."""
REMEMBERED: Final = 32_768
"""Facts of which we know that they were told, so that a level-triggered loop need not ask again."""
BURST: Final = 256
PER_SECOND: Final = 2.0
"""So many normal events at once, and so many per second beyond. Thousands of sessions that start
together would else cost the API server more for the telling than for the placing; their status
says the same. Warnings are always told. Guesses: far above the life of a calm cluster.
"""
CLUSTER_NAMESPACE: Final = "default"
"""Where the events of cluster-scoped objects live."""

log = logging.getLogger(__name__)


class Teller:
    """Writes notes as events."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lock = threading.Lock()
        self._left, self._counted_at = float(BURST), 0.0

    def tell(self, note: Note, *, now: float) -> None:
        key = (note.name, note.once_per)
        if key in self._told:
            return
        if not (note.warning or self._may_chat(now)):
            metrics.UNTOLD.inc()
            return
        try:
            self._write(note, now=now)
        except ApiError as error:
            log.warning("an event is not told: %s", error)
            return
        with self._lock:
            self._told[key] = None
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)

    def _may_chat(self, now: float) -> bool:
        with self._lock:
            passed = max(now - self._counted_at, 0.0)
            self._left, self._counted_at = min(self._left + passed * PER_SECOND, BURST), now
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def _write(self, note: Note, *, now: float) -> None:
        try:
            self._api.create(EVENTS, body(note, now=now))
        except ExistsError:
            self._count(note, now=now)

    def _count(self, note: Note, *, now: float) -> None:
        namespace = note.subject.namespace or CLUSTER_NAMESPACE
        old = self._api.get(EVENTS, name=note.name, namespace=namespace)
        if (old["metadata"].get("annotations") or {}).get(LABEL_EPOCH) == note.once_per:
            return
        patch = {
            "metadata": {"annotations": {LABEL_EPOCH: note.once_per}},
            "count": int(old.get("count") or 1) + 1,
            "lastTimestamp": clock.text(now),
            "message": note.message[:MAX_MESSAGE],
        }
        self._api.patch(EVENTS, patch, name=note.name, namespace=namespace)


def body(note: Note, *, now: float) -> dict[str, Any]:
    """The event that tells a note for the first time."""
    namespace = note.subject.namespace or CLUSTER_NAMESPACE
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": note.name,
            "namespace": namespace,
            "annotations": {LABEL_EPOCH: note.once_per},
        },
        "involvedObject": {
            "apiVersion": note.subject.api_version,
            "kind": note.subject.kind,
            "name": note.subject.name,
            "namespace": note.subject.namespace,
            "uid": note.subject.uid,
        },
        "type": WARNING if note.warning else NORMAL,
        "reason": note.reason,
        "message": note.message[:MAX_MESSAGE],
        "count": 1,
        "firstTimestamp": clock.text(now),
        "lastTimestamp": clock.text(now),
        "source": {"component": MANAGER_OPERATOR},
        "reportingComponent": MANAGER_OPERATOR,
        "reportingInstance": MANAGER_OPERATOR,
    }
