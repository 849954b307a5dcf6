"""Events: one word and one sentence on an object, each fact told once, repeats counted.

An event's name is made from what it tells, so a restarted operator cannot tell it twice; the same
words at a later start of the session raise the count of the first. Failing to tell stops nothing.
"""

import logging
from collections import OrderedDict
from typing import Any, Final

from sojourn_api.names import LABEL_EPOCH, MANAGER_OPERATOR

from sojourn_operator import clock
from sojourn_operator.act.api import Api, ApiError, ConflictError
from sojourn_operator.kinds import EVENTS
from sojourn_operator.note import Note

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
MAX_MESSAGE: Final = 1024
"""The API server's bound."""
REMEMBERED: Final = 4096
"""Facts of which we know that they were told, so that a level-triggered loop need not ask again."""
CLUSTER_NAMESPACE: Final = "default"
"""Where the events of cluster-scoped objects live."""

log = logging.getLogger(__name__)


class Teller:
    """Writes notes as events."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()

    def tell(self, note: Note, *, now: float) -> None:
        key = (note.name, note.once_per)
        if key in self._told:
            return
        try:
            self._write(note, now=now)
        except ApiError as error:
            log.warning("an event is not told: %s", error)
            return
        self._told[key] = None
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _write(self, note: Note, *, now: float) -> None:
        try:
            self._api.create(EVENTS, body(note, now=now))
        except ConflictError:
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
