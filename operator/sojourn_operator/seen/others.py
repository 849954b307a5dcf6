"""What pods that are no session's take of each node: listed now and then, kept as sums.

Not watched: a cluster has many such pods, whose every change would be read for three numbers. What
is late here the scheduler refuses, and the session goes elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sojourn_api.names import LABEL_SESSION
from sojourn_api.reader import Invalid, Reader

from sojourn_operator.act.api import Api
from sojourn_operator.kinds import PODS
from sojourn_operator.seen.lookout import Lookout
from sojourn_operator.seen.pod import requests_of

LOOK_SECONDS: Final = 60.0
"""Between two lists: a guess; system pods change seldom, and a late figure costs one refusal."""
BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Taken:
    """What such pods request of one node in all, and how many they are."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0


NOTHING: Final = Taken()


def taken(raws: Iterable[Mapping[str, Any]]) -> dict[str, Taken]:
    """Sums by node over pods; one that cannot be read counts as a pod without requests."""
    found: dict[str, Taken] = {}
    for raw in raws:
        spec = Reader(raw).part("spec")
        try:
            cpu, memory = requests_of(spec)
        except Invalid:
            cpu, memory = 0, 0
        node = spec.text("nodeName", "")
        old = found.get(node, NOTHING)
        found[node] = Taken(old.cpu_milli + cpu, old.memory_bytes + memory, old.pods + 1)
    return found


def read(api: Api) -> dict[str, Taken]:
    """What such pods take now, one page of them in memory at a time."""
    raws, _ = api.scan(PODS, label_selector=f"!{LABEL_SESSION}", field_selector=BOUND)
    return taken(raws)


def lookout(api: Api, *, leads: Callable[[], bool], wake: Callable[[], None]) -> Lookout[Taken]:
    """What such pods take, by node."""
    return Lookout(
        lambda: read(api),
        name="others",
        what="the pods of others",
        seconds=LOOK_SECONDS,
        leads=leads,
        wake=wake,
    )
