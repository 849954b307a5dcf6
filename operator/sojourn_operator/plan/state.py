"""What the plan decides from: one frozen picture of nodes, GPUs, sessions, tiers and tenants.

Values only: no clock (`now` is a number like the others), no Kubernetes objects, no defaults of
the API. Times are seconds on one clock, whose zero does not matter; shares are thousandths of an
A100-80GB; a session's key is "namespace/name". Build a new State for each plan; unchanged parts
may be shared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sojourn_api.gpus import Speed


class Phase(StrEnum):
    """Where a session is on its way; only Starting, Running and Pausing hold devices."""

    WAITING = "Waiting"
    """Never ran, or lost its place: no pod."""
    STARTING = "Starting"
    """Its pod exists and does not answer yet."""
    RUNNING = "Running"
    PAUSING = "Pausing"
    """Its pod is ending and still holds its devices (also of a deleted session)."""
    PAUSED = "Paused"
    """No pod; comes back by itself unless `suspend` is set."""
    FAILED = "Failed"
    """No pod, and none until its spec changes."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a session takes of one GPU. `share` is this GPU's part of the session's share."""

    ordinal: int
    slices: int
    share: int


@dataclass(frozen=True, slots=True)
class Place:
    """A node and one GPU of it per shard."""

    node: str
    gpus: tuple[GpuUse, ...]


@dataclass(frozen=True, slots=True)
class Nomination:
    """Room that is being freed, and is kept for its claimant until `expires`."""

    place: Place
    victims: tuple[str, ...]
    expires: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `slices` are those in service, taken or not; `links` ordinals it has NVLink to.

    `kernel_class` sets its kernels' results apart from those of other models; empty: not known.
    `speed` None means a model that neither the table nor the configuration knows:
    sessions that ask for a share are not placed there.
    """

    ordinal: int
    uuid: str
    model: str
    slices: int
    speed: Speed | None
    healthy: bool = True
    links: tuple[int, ...] = ()
    kernel_class: str = ""
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint; only NoSchedule and NoExecute keep sessions away."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in a pod: an empty key with `Exists` tolerates all, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with GPUs. CPU and memory are allocatable, less what pods of others request."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True
    """False when cordoned."""
    ready: bool = True
    heard: bool = True
    """False when its device plugin says nothing any more: nobody knows how its GPUs are."""
    draining: bool = False
    """Sessions there shall move away, Gold too."""
    pods: int = 110


@dataclass(frozen=True, slots=True)
class Request:
    """What a session asks for in all; `on_each` says what that is on each of k GPUs."""

    slices: int
    share: int = 0
    decode_fraction: int = 500
    shards: int = 1
    """GPUs that it is made for; fewer are never tried."""
    max_shards: int = 1
    """More GPUs, linked ones of one node, are tried up to this where `shards` find no room."""
    minimum_slices: int = 0
    """The least on one GPU, however many shards."""
    gpu_models: tuple[str, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    spread: bool = False
    bandwidth: int = 0
    """GB/s of memory in all without which the tier's time between tokens cannot be met: a wish, as
    it is derived from all weights, of which a model may read a part. 0: no such target.
    """

    def on_each(self, shards: int) -> tuple[int, int]:
        """Slices and share on each of `shards` GPUs, rounded up."""
        slices = max(-(-self.slices // shards), self.minimum_slices)
        return slices, -(-self.share // shards)


@dataclass(frozen=True, slots=True)
class Session:
    """One session. `since` is when it entered its phase; `created` orders equals, oldest first."""

    key: str
    tier: str
    request: Request
    phase: Phase
    created: float
    since: float
    tenant: str = ""
    """Name of the Tenant that its namespace belongs to; empty for none."""
    place: Place | None = None
    """What its pod holds; in Paused and Waiting what it held last, only a wish to return."""
    wish: Request | None = None
    """Of one that runs: what its next start asks for, where it does not hold just that."""
    suspend: bool = False
    """It shall not run: by its spec, or because it idles."""
    deleting: bool = False
    save_bytes: int | None = None
    """Bytes that a pause would still have to write, at the last poll; None if none has told."""
    saved_bytes: int = 0
    """Bytes of its context in the store, at the last poll."""
    kernel_class: str = ""
    """That of its snapshot, as far as the GPU decides it; empty without one, or where none does."""
    nomination: Nomination | None = None
    not_before: float = 0.0
    """Back-off after a failed start: no place before this time."""
    avoid: tuple[str, ...] = ()
    """Nodes that refused it lately."""
    budgets: tuple[str, ...] = ()
    """Names of the disruption budgets that cover it."""

    @property
    def to_save(self) -> int:
        """What the plan weighs: what is unknown weighs nothing."""
        return self.save_bytes or 0


@dataclass(frozen=True, slots=True)
class Tier:
    """A QoSTier. One with an empty `pausable_by` is never paused, and ignores minimum run times."""

    name: str
    priority: int
    guaranteed_share: int = 0
    pausable_by: frozenset[str] = frozenset()
    min_run: float = 30.0
    """Seconds that a session runs before another may pause it."""
    cool_down: float = 30.0
    """Seconds after a pause in which the session pauses nobody to come back."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Tenant; None in a quota means unlimited, empty `tiers` none at all."""

    name: str
    tiers: frozenset[str]
    guarantees: Mapping[str, int] = field(default_factory=dict)
    weight: int = 1
    quota_share: int | None = None
    quota_slices: int | None = None
    quota_sessions: int | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    """Kinds of request with their counts; empty while nothing is known."""

    counts: tuple[tuple[Request, int], ...] = ()
    passing: bool = False
    """Whether sessions come and go, so that room kept whole today serves whoever comes next."""

    @property
    def total(self) -> int:
        """Requests in all."""
        return sum(count for _, count in self.counts)


class DefragMode(StrEnum):
    """Whether sessions may be moved for the sake of packing."""

    OFF = "Off"
    DRY_RUN = "DryRun"
    """Say in the plan's notes what would be moved."""
    ON = "On"


@dataclass(frozen=True, slots=True)
class Defrag:
    """`moves` is how many may begin now: the budget per minute, less those of the last minute."""

    mode: DefragMode = DefragMode.OFF
    moves: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Everything at one moment. `budgets` holds how many more disruptions each allows now."""

    now: float
    nodes: Mapping[str, Node]
    sessions: Mapping[str, Session]
    tiers: Mapping[str, Tier]
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    budgets: Mapping[str, int] = field(default_factory=dict)
    mix: Mix = Mix()
    """What to pack for: keep the object that `mix.follow` returns, from plan to plan."""
    defrag: Defrag = Defrag()
