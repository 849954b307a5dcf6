"""Which device plugins have fallen silent: their Leases, listed now and then.

Not watched: a renewal is no news, and all of them together would wake the loop again and again.
Times on the Leases are others' clocks and only shown; what counts is for how long we saw none
renewed.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sojourn_api.names import HEARTBEAT_SECONDS, LABEL_HEARTBEAT
from sojourn_api.reader import Reader

from sojourn_operator.act.api import Api
from sojourn_operator.kinds import LEASES
from sojourn_operator.seen.lookout import Lookout

LOOK_SECONDS: Final = 10.0
"""Between two lists: one that dies is told so many seconds after its Lease ran out, at most."""
BLIND_SECONDS: Final = 3 * LOOK_SECONDS
"""After such a gap between two looks all begin anew: the API server was away from plugins too."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """One plugin's Lease: its version, for how long it holds, and its own time, to be shown."""

    version: str
    seconds: float
    renewed: str


@dataclass(frozen=True, slots=True)
class _Seen:
    renewal: Renewal
    at: float
    """When this version was first seen."""


class LeaseWatch:
    """Remembers when each node's Lease was last seen renewed; time is given. No I/O."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._looked_at = float("-inf")

    def expired(self, renewals: Mapping[str, Renewal], *, now: float) -> dict[str, str]:
        """By node, of those whose Lease ran out: the time of the last renewal."""
        blind = now - self._looked_at > BLIND_SECONDS
        known, self._looked_at = self._seen, now
        self._seen = {
            name: known[name]
            if not blind and name in known and known[name].renewal == renewal
            else _Seen(renewal, now)
            for name, renewal in renewals.items()
        }
        return {
            name: one.renewal.renewed
            for name, one in self._seen.items()
            if now - one.at >= one.renewal.seconds
        }


def renewals(raws: Iterable[Mapping[str, Any]]) -> dict[str, Renewal]:
    """By node; a Lease that names none is left out."""
    found = {}
    for raw in raws:
        spec = Reader(raw).part("spec")
        node, renewed = spec.text("holderIdentity", ""), spec.text("renewTime", "")
        if node and renewed:
            seconds = float(spec.number("leaseDurationSeconds", HEARTBEAT_SECONDS))
            version = str(raw["metadata"]["resourceVersion"])
            found[node] = Renewal(version, seconds, f"{renewed.partition('.')[0].rstrip('Z')}Z")
    return found


def lookout(
    api: Api, *, namespace: str, leads: Callable[[], bool], wake: Callable[[], None]
) -> Lookout[str]:
    """Nodes whose device plugin is silent, and since when."""
    leases = LeaseWatch()

    def look() -> dict[str, str]:
        raws, _ = api.list(LEASES, namespace=namespace, label_selector=LABEL_HEARTBEAT)
        return leases.expired(renewals(raws), now=time.monotonic())

    return Lookout(
        look,
        name="heartbeats",
        what="the Leases of the device plugins",
        seconds=LOOK_SECONDS,
        leads=leads,
        wake=wake,
    )
