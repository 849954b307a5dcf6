"""One session and all that its next step depends on, and what a step asks for. Values only.

`life` turns a Scene into a Step; `act.apply` carries a Step out, in the order of its fields.
"""

from dataclasses import dataclass, field, replace

from sojourn_api.objects import Offender, Session, SessionStatus, SnapshotRef, Tier
from sojourn_api.weights import Numbers

from sojourn_operator.act.status import Verdict
from sojourn_operator.seen.pod import Pod
from sojourn_operator.session.note import Note


@dataclass(frozen=True, slots=True)
class Runtime:
    """Debounced facts from polls of the present runtime."""

    phase: str = ""
    exact: bool = True
    exact_reason: str = ""
    target: Verdict | None = None
    idle: bool = False
    silent: str = ""
    """The polls that it left without an answer when it was last judged, as "3 polls in 15 s"."""
    stalled: str = ""
    """What its engine waits for and does not get."""
    damage: str = ""
    """What of the saved context was spoilt, and what became of it."""
    weights: Numbers | None = None
    """What its weights say of themselves, and its LLMModel should."""
    unsaved_bytes: int | None = None
    """None: no poll has told."""
    snapshot: SnapshotRef | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is wrong with what a session was started by, though it serves."""

    reason: str
    message: str
    same: str | None = None
    """Groups texts of one fact that differ in numbers; None: each text is a fact."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A moment of one session. `lost_nodes` were silent for too long, or are gone.

    Two that differ in time only are equal.
    """

    session: Session
    now: float = field(compare=False)
    pods: tuple[Pod, ...] = ()
    tier: Tier | None = None
    model_generation: int = 0
    cordoned: bool = False
    lost_nodes: frozenset[str] = frozenset()
    node_state: str = "unknown"
    """Of the node that it is placed on, as the API server has it."""
    runtime: Runtime | None = None
    doubts: tuple[Doubt, ...] = ()
    offence: Offender | None = None
    """What the device plugin holds against the present pod."""
    pending_seconds: float = 60.0
    purges: bool = False
    """A deleted session's saved context is removed by a pod."""
    purge: Pod | None = None
    """That pod."""

    @property
    def status(self) -> SessionStatus:
        return self.session.status

    @property
    def lost(self) -> bool:
        placement = self.status.placement
        return placement is not None and placement.node in self.lost_nodes

    @property
    def present(self) -> Pod | None:
        """The pod of the present start."""
        return next((pod for pod in self.pods if pod.epoch == self.status.epoch), None)


@dataclass(frozen=True, slots=True)
class Step:
    """What to do, in this order; a crash in between ends in the same state when it is done anew."""

    status: SessionStatus
    snapshot: SnapshotRef | None = None
    """To be described by an object of its own before the status points to it."""
    notes: tuple[Note, ...] = ()
    delete: tuple[Pod, ...] = ()
    create: bool = False
    """The pod of the present start, and the Service."""
    release: tuple[Pod, ...] = ()
    """Ends that are recorded: our finalizer goes."""
    purge: bool = False
    """The pod that removes the saved context."""
    finish: bool = False
    """Nothing is left of a deleted session but its own finalizer."""
    deadline: float | None = None
    """When the clock alone may ask for another step."""

    def asks(self, status: SessionStatus) -> bool:
        """Whether it asks for anything, where the session's status is this."""
        return replace(self, deadline=None) != Step(status)
