"""What a plan asks the shell to do, in order: typed actions with a reason and a sentence for
users.

No execution and no Kubernetes here. Every action may be repeated: doing one that is done already
changes nothing. `reason` is one word for conditions and events, `message` one sentence with
numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sojourn_api import names

from sojourn_operator.plan.state import Nomination, Place

# Reasons, one word each, as they show in conditions and events.
PLACED: Final = "Placed"
RESUMED: Final = "Resumed"
PREEMPTED: Final = "Preempted"
RECLAIMED: Final = "Reclaimed"
SUSPENDED: Final = "Suspended"
DELETED: Final = "Deleted"
NODE_DRAINING: Final = "NodeDraining"
MAKING_ROOM: Final = "MakingRoom"
DEFRAGMENTED: Final = "Defragmented"
NO_ROOM: Final = "NoRoom"
NODES_OUT: Final = "NodesLeftOut"
NO_GPU: Final = "NoMatchingGPU"
BACK_OFF: Final = "BackOff"
ROOM_IS_FREED: Final = "WaitingForVictims"
QUOTA: Final = "QuotaExceeded"
UNKNOWN_TIER: Final = names.UNKNOWN_TIER
TIER_FORBIDDEN: Final = names.TIER_FORBIDDEN
IMPOSSIBLE: Final = names.INVALID_REQUEST


@dataclass(frozen=True, slots=True)
class PlaceSession:
    """Start a session that has no snapshot to come back from (Waiting) at this place."""

    session: str
    place: Place
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Start a paused session again. `exact` False: in another kernel class than its snapshot's."""

    session: str
    place: Place
    reason: str
    message: str
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Nominate:
    """Write the claimant's nomination to its status, before anyone is paused for it."""

    session: str
    nomination: Nomination
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pause:
    """End the session's pod, keep its context. `by` is the claimant's key, or empty (suspended)."""

    session: str
    by: str
    reason: str
    message: str
    to_save: str = ""
    """What it has yet to save when it is told to pause: true of that moment alone."""


@dataclass(frozen=True, slots=True)
class Move:
    """Write `nomination` (a free place) to the status, then pause it: it resumes there."""

    session: str
    nomination: Nomination
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Clear a nomination that expired or that no longer holds."""

    session: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The session stays without a place; `message` says in numbers what is missing."""

    session: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Reject:
    """The session cannot be placed as it is written, whatever becomes free."""

    session: str
    reason: str
    message: str


Action = PlaceSession | Resume | Nominate | Pause | Move | Withdraw | Wait | Reject


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in the order of doing, and when the clock alone can change the plan (None: never)."""

    actions: tuple[Action, ...]
    next_deadline: float | None
    notes: tuple[str, ...] = ()
    """Sentences on what was only considered (a dry run)."""
    never: Mapping[str, str] = field(default_factory=dict)
    """Of sessions that run and could not start again as they are written now: why."""
