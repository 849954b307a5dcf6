"""The six kinds as frozen values: what a spec says and what a status holds, after parsing.

No parsing here (see `parse`), no defaults that the CRD schema does not also give (a drift test
compares both). Units stand in the names or the comments: slices and bytes are integers, shares are
thousandths of an A100-80GB.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sojourn_api.names import READY, SILENT


class LatencyMetric(StrEnum):
    """Which latency a tier's p95 target speaks of."""

    TIME_TO_FIRST_TOKEN = "TimeToFirstToken"
    INTER_TOKEN_LATENCY = "InterTokenLatency"


class SnapshotPolicy(StrEnum):
    """What becomes of a session's snapshots when the session is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class Spreading(StrEnum):
    """Which of two equally good places a session prefers."""

    PACK = "Pack"
    SPREAD = "Spread"


class IdleAction(StrEnum):
    """What happens to a session without requests."""

    NONE = "None"
    PAUSE = "Pause"


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """The part of `metadata` that decisions use.

    `created` is RFC 3339 in seconds, so that text order is time order.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    created: str
    deleting: bool = False
    resource_version: str = ""
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """One entry of `status.conditions`; `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int = 0
    last_transition: str = ""


@dataclass(frozen=True, slots=True)
class SecretKey:
    """`spec.apiKeySecretRef`: one key of a Secret in the session's namespace."""

    name: str
    key: str = "api-key"


@dataclass(frozen=True, slots=True)
class Resources:
    """`spec.resources`; None means derived.

    Slices come from the model and the context length, the share from the tier's guarantee.
    """

    slices: int | None = None
    share: int | None = None
    max_shards: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """`spec.placement`: wishes. `gpu_models` empty means any."""

    gpu_models: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    spreading: Spreading = Spreading.PACK


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """`LLMSession.spec`.

    `template` is the raw pod template part (tolerations, resources, env, ...), merged as given.
    """

    model: str
    tier: str
    context_length: int | None = None
    resources: Resources = Resources()
    placement: Placement = Placement()
    suspend: bool = False
    idle_after_seconds: int = 0
    idle_action: IdleAction = IdleAction.NONE
    snapshot_policy: SnapshotPolicy = SnapshotPolicy.DELETE
    checkpoint_tokens: int = 256
    api_key: SecretKey | None = None
    template: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """One GPU of a placement: what the pod asks of it."""

    ordinal: int
    uuid: str
    model: str
    slices: int
    share: int


@dataclass(frozen=True, slots=True)
class SessionPlacement:
    """`status.placement`: where a session is, or was last (then `Placed` is False)."""

    node: str
    gpus: tuple[GpuPlace, ...]


@dataclass(frozen=True, slots=True)
class Nomination:
    """`status.nomination`: room that is being freed for this session.

    `victims` are `namespace/name`.
    """

    node: str
    gpus: tuple[GpuPlace, ...]
    victims: tuple[str, ...]
    expires: str


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """`status.snapshot`: the last committed snapshot, as the runtime named it.

    The source is its termination message, or its status while it runs.
    """

    name: str
    uri: str
    tokens: int
    bytes: int
    conversations: int
    digest: str
    weights_digest: str
    kernel_class: str
    epoch: int
    saved: str
    manifest: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """`status.failure`: why the last start ended badly; absent once the next has served a while.

    `retry` False waits for a change: of the session (`generation`) or of its model
    (`model_generation`).
    """

    reason: str
    message: str
    retry: bool
    at: str
    generation: int
    model_generation: int


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """`LLMSession.status`; `epoch` counts starts: the present pod is `<name>-<epoch>`."""

    epoch: int = 0
    conditions: tuple[Condition, ...] = ()
    placement: SessionPlacement | None = None
    nomination: Nomination | None = None
    snapshot: SnapshotRef | None = None
    preempted_by: str = ""
    paused_at: str = ""
    started_at: str = ""
    endpoint: str = ""
    exact: bool = True
    context_length: int = 0
    """Tokens that the last start which served holds at most."""
    failures: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """An LLMSession."""

    meta: ObjectMeta
    spec: SessionSpec
    status: SessionStatus = SessionStatus()


@dataclass(frozen=True, slots=True)
class Model:
    """An LLMModel.

    `digest` ("sha256:...") empty means unchecked; `decode_fraction` is in thousandths;
    `quantization` is bf16, w8a16, w8a8 or the path of a plan in the pod.
    """

    meta: ObjectMeta
    uri: str
    weight_bytes: int
    kv_bytes_per_token: int
    layers: int
    heads: int
    kv_heads: int
    context_length: int
    digest: str = ""
    quantization: str = "bf16"
    decode_fraction: int = 500
    minimum_gpu_bytes: int = 0
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Tier:
    """A QoSTier.

    `guaranteed_share` is per tenant; a session without a wish asks for all of it.
    `target_p95_ms` 0 means best effort: no target, and `TargetMet` stays Unknown.
    """

    meta: ObjectMeta
    priority: int
    guaranteed_share: int
    target_p95_ms: int
    target_metric: LatencyMetric
    pausable_by: tuple[str, ...]
    min_run_seconds: int = 30
    cool_down_seconds: int = 30
    time_slice_ms: int = 50


@dataclass(frozen=True, slots=True)
class Quota:
    """`Tenant.spec.quota`; None means unlimited."""

    share: int | None = None
    slices: int | None = None
    sessions: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Tenant.

    `guarantees` maps tier name to thousandths of an A100, overriding the tier's own figure.
    """

    meta: ObjectMeta
    namespaces: tuple[str, ...]
    tiers: tuple[str, ...]
    guarantees: Mapping[str, int] = field(default_factory=dict)
    weight: int = 1
    quota: Quota = Quota()
    api_key: SecretKey | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """How busy a GPU was lately, in percent; None is unknown.

    `busy` is time with any kernel running. Only `sm` (part of the SMs at work) and `bandwidth`
    (part of the memory bandwidth used) say how full it was; not every GPU can tell them.
    """

    busy: int | None = None
    sm: int | None = None
    bandwidth: int | None = None


@dataclass(frozen=True, slots=True)
class MigRoom:
    """How many instances of one MIG profile still fit, and would fit the GPU when empty."""

    profile: str
    remaining: int
    ideal: int


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """What a session's runtime says of its own allocator on one GPU, in bytes.

    `pod` is `namespace/name`; None is unknown.
    """

    pod: str
    reserved: int
    used: int
    inactive_split: int | None = None
    largest_free: int | None = None


@dataclass(frozen=True, slots=True)
class Stranded:
    """Free slices on GPUs that cannot take a session of `size` slices."""

    size: int
    slices: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a GPUNode's status.

    `slices` are those in service; `free_slices` as the plugin's ledger has them; `share` is what
    the GPU gives at a decode fraction of 0.5 (0: unknown model). `profiles` are there in MIG mode
    only, `allocators` for those pods whose runtime has told lately.
    """

    ordinal: int
    uuid: str
    model: str
    memory_bytes: int
    slice_bytes: int
    slices: int
    free_slices: int
    healthy: bool
    reason: str = ""
    foreign_bytes: int = 0
    foreign_by: tuple[str, ...] = ()
    mig: bool = False
    links: tuple[int, ...] = ()
    share: int = 0
    load: GpuLoad = GpuLoad()
    profiles: tuple[MigRoom, ...] = ()
    allocators: tuple[AllocatorUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Offender:
    """A pod that takes more than it was granted, as the device plugin saw it.

    `stop`: by the plugin's policy its session shall be paused. `uid` is empty while not known.
    """

    namespace: str
    pod: str
    uid: str
    reason: str
    message: str
    stop: bool = False


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A GPUNode, written by the device plugin, and by the operator when that is silent.

    Its name is the Kubernetes node's; `stranded` has one entry for each session size in use there.
    """

    meta: ObjectMeta
    gpus: tuple[Gpu, ...]
    driver_version: str = ""
    stranded: tuple[Stranded, ...] = ()
    offenders: tuple[Offender, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether it was told that its device plugin is not heard of."""
        return any(one.type == READY and one.reason in SILENT for one in self.conditions)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A SessionSnapshot: an immutable description of one saved context."""

    meta: ObjectMeta
    session: str
    ref: SnapshotRef
    conditions: tuple[Condition, ...] = ()
