"""Every name that two components, or a component and a user, must spell alike.

Labels, annotations, conditions, reasons, environment variables, paths and resources; no logic
beyond joining them.
Each has one constant or one function here, and is never written out anywhere else.
"""

from typing import Final

GROUP: Final = "sojourn.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "sojourn"

# Field managers of server-side apply: one per component, so that each owns its own fields.
MANAGER_OPERATOR: Final = "sojourn-operator"
MANAGER_DEVICEPLUGIN: Final = "sojourn-deviceplugin"
MANAGER_GATEWAY: Final = "sojourn-gateway"

# Labels (on pods, services, snapshots) and the pod annotations that only the operator may write.
LABEL_SESSION: Final = f"{GROUP}/session"
LABEL_TENANT: Final = f"{GROUP}/tenant"
LABEL_TIER: Final = f"{GROUP}/tier"
LABEL_EPOCH: Final = f"{GROUP}/epoch"
LABEL_GPU_NODE: Final = f"{GROUP}/gpu"
"""On a Kubernetes node: `true` where the device plugin shall run (the chart selects by it)."""
ANNOTATION_TIER: Final = f"{GROUP}/tier"
ANNOTATION_PRIORITY: Final = f"{GROUP}/priority"
ANNOTATION_SHARE: Final = f"{GROUP}/share"
ANNOTATION_TIME_SLICE: Final = f"{GROUP}/time-slice"
"""Milliseconds that sessions of one tier compute in turn on a shared GPU."""
ANNOTATION_GPUS: Final = f"{GROUP}/gpus"
"""JSON list of `{"ordinal", "uuid", "slices", "share"}`: what the operator counted for this pod."""
ANNOTATION_WAKE: Final = f"{GROUP}/wake"
"""On a session paused for idleness: an RFC 3339 time; if later than the pause, it wakes."""
ANNOTATION_CONTEXT_LENGTH: Final = f"{GROUP}/context-length"
"""On a session's pod: the tokens that this start holds at most."""
ANNOTATION_TIERS: Final = f"{GROUP}/tiers"
"""On a namespace: the tiers that its tenant may use, joined by commas; absent means every tier."""
ANNOTATION_MEASURED: Final = f"{GROUP}/measured"
"""On an LLMModel: what `sojourn-runtime bench` measured, as JSON, for people to read."""
FINALIZER_SESSION: Final = f"{GROUP}/session"
FINALIZER_POD: Final = f"{GROUP}/record-end"
"""Holds a session's pod until its end and its message stand in the session's status."""

RESOURCE_PREFIX: Final = f"{GROUP}/gpu-"


def gpu_resource(ordinal: int) -> str:
    """The extended resource of one physical GPU, counted in slices."""
    return f"{RESOURCE_PREFIX}{ordinal}"


MIG_PREFIX: Final = f"{GROUP}/mig-"


def mig_resource(profile: str) -> str:
    """The extended resource of a node's MIG instances of one profile, e.g. `1g.10gb`."""
    return f"{MIG_PREFIX}{profile.replace('+', '-')}"


def pod_name(session: str, epoch: int) -> str:
    """The pod of a session's `epoch`-th start; a second one is refused by the API server."""
    return f"{session}-{epoch}"


# Conditions. Session: all five, always sent. Snapshot, model, tenant, node: Ready.
READY: Final = "Ready"
PLACED: Final = "Placed"
PAUSED: Final = "Paused"
CONTEXT_SAVED: Final = "ContextSaved"
TARGET_MET: Final = "TargetMet"
REASON_IDLE: Final = "Idle"
"""Of `Paused`: the session had no requests for long, and wakes when it is asked to."""
INVALID_SPEC: Final = "InvalidSpec"
INVALID_TEMPLATE: Final = "InvalidTemplate"
INVALID_REQUEST: Final = "InvalidRequest"
UNKNOWN_MODEL: Final = "UnknownModel"
UNKNOWN_TIER: Final = "UnknownTier"
TIER_FORBIDDEN: Final = "TierForbidden"
CONTEXT_TOO_LONG: Final = "ContextTooLong"
MODEL_MISMATCH: Final = "ModelMismatch"
"""The LLMModel's numbers are not those of its weights: sessions would be placed wrongly."""
NEED_A_CHANGE: Final = frozenset(
    {
        INVALID_SPEC,
        INVALID_TEMPLATE,
        INVALID_REQUEST,
        UNKNOWN_MODEL,
        UNKNOWN_TIER,
        TIER_FORBIDDEN,
        CONTEXT_TOO_LONG,
    }
)
"""Of `Ready`: waiting does not help, only a change of the session or of what it names."""
PLUGIN_GONE: Final = "PluginGone"
NODE_NOT_READY: Final = "NodeNotReady"
SILENT: Final = frozenset({PLUGIN_GONE, NODE_NOT_READY})
"""Of a GPUNode's `Ready`, written by the operator: its device plugin has not been heard of."""
LABEL_HEARTBEAT: Final = f"{GROUP}/heartbeat"
"""On the Lease that a node's device plugin renews: the component that does."""


def heartbeat_name(node: str) -> str:
    """The Lease of a node's device plugin, in the release's namespace."""
    return f"sojourn-gpunode-{node}"


HEARTBEAT_SECONDS: Final = 60
"""For so long that Lease holds: three renewals. A plugin that restarts is back in a few seconds."""


GRANTS_KEPT: Final = "GrantsKept"
"""Of a GPUNode: no pod takes more than it was granted."""
SESSION_CONDITIONS: Final = (READY, PLACED, PAUSED, CONTEXT_SAVED, TARGET_MET)

# What a device plugin holds against a pod, and for what the operator then pauses its session.
OVER_MEMORY: Final = "OverMemory"
YIELD_IGNORED: Final = "YieldIgnored"
OFFENCES: Final = frozenset({OVER_MEMORY, YIELD_IGNORED})

# What a session's server says on the wire when it does not serve, and the gateway reads.
PHASE_SERVING: Final = "Serving"
"""Of its status page: requests are answered."""
NOT_NOW: Final = frozenset({"loading", "restoring", "pausing"})
"""Codes of its 503 for what it did not begin, or gave up for good: the same may be sent again."""
STREAM_PAUSED: Final = "paused"
"""Comment on a stream before a clean close: the rest is to be had after the pause."""

# What the operator puts into a session's container; the runtime's cli reads them as defaults.
ENV_SESSION: Final = "SOJOURN_SESSION"
ENV_NAMESPACE: Final = "SOJOURN_NAMESPACE"
ENV_EPOCH: Final = "SOJOURN_EPOCH"
ENV_OWNER: Final = "SOJOURN_OWNER"
"""Which of all sessions of its name it is (see `owner`)."""
ENV_TIER: Final = "SOJOURN_TIER"
ENV_PRIORITY: Final = "SOJOURN_PRIORITY"
ENV_MODEL: Final = "SOJOURN_MODEL"
"""URI of the weights."""
ENV_MODEL_NAME: Final = "SOJOURN_MODEL_NAME"
"""Name of the LLMModel, which clients send as `model`."""
ENV_MODEL_NUMBERS: Final = "SOJOURN_MODEL_NUMBERS"
"""What the LLMModel says of its weights: JSON of `weights.Numbers`."""
ENV_QUANTIZATION: Final = "SOJOURN_QUANTIZATION"
ENV_WEIGHTS_DIGEST: Final = "SOJOURN_WEIGHTS_DIGEST"
ENV_WEIGHTS_CACHE: Final = "SOJOURN_WEIGHTS_CACHE"
ENV_STORE: Final = "SOJOURN_STORE"
"""URI of this session's own folder of the snapshot store."""
ENV_EXPECT_MANIFEST: Final = "SOJOURN_EXPECT_MANIFEST"
"""Name of the last manifest that is known of the session: the store must have it or a later one."""
ENV_CONTEXT_LENGTH: Final = "SOJOURN_CONTEXT_LENGTH"
ENV_CHECKPOINT_TOKENS: Final = "SOJOURN_CHECKPOINT_TOKENS"
ENV_API_KEY: Final = "SOJOURN_API_KEY"
ENV_DEVICE: Final = "SOJOURN_DEVICE"
ENV_SHARDS: Final = "SOJOURN_SHARDS"
"""Processes that compute the model together, each on a GPU of its own."""
ENV_PORT: Final = "SOJOURN_PORT"


def owner(*, created: str, uid: str) -> str:
    """Tells a session from others of its name; a later one's compares greater."""
    return f"{created}/{uid}"


# What Allocate puts into a container, once per GPU: two GPUs' equal keys would collide.


def env_gpu_uuid(ordinal: int) -> str:
    """UUID of the granted GPU."""
    return f"SOJOURN_GPU_{ordinal}_UUID"


def env_gpu_bytes(ordinal: int) -> str:
    """Bytes of GPU memory granted."""
    return f"SOJOURN_GPU_{ordinal}_BYTES"


def env_gpu_slices(ordinal: int) -> str:
    """Slices granted."""
    return f"SOJOURN_GPU_{ordinal}_SLICES"


def env_gpu_slot(ordinal: int) -> str:
    """Name of this pod's own grant among the folders of `arbiter_all`."""
    return f"SOJOURN_GPU_{ordinal}_SLOT"


def env_mig_uuids(profile: str) -> str:
    """UUIDs of the granted MIG instances of one profile, with commas between."""
    return f"SOJOURN_MIG_{profile.upper().replace('.', '_').replace('+', '_')}_UUIDS"


ARBITER_DIR: Final = "/run/sojourn"
"""On the host: one folder per GPU UUID.

In the container: `gpu-<ordinal>/own` (writable) and `gpu-<ordinal>/all`.
"""


def arbiter_own(ordinal: int) -> str:
    """Folder in the container that holds the pod's own page, writable."""
    return f"{ARBITER_DIR}/gpu-{ordinal}/own"


def arbiter_all(ordinal: int) -> str:
    """Folder in the container with the pages of all grants of that GPU, read-only."""
    return f"{ARBITER_DIR}/gpu-{ordinal}/all"


# Session pods.
CONTAINER: Final = "runtime"
PORT: Final = 8000
PORT_NAME: Final = "http"
STORE_MOUNT: Final = "/var/lib/sojourn/store"
MODELS_MOUNT: Final = "/var/lib/sojourn/models"
CACHE_MOUNT: Final = "/var/cache/sojourn"
TERMINATION_MESSAGE: Final = "/dev/termination-log"
PATH_HEALTH: Final = "/healthz"
PATH_READY: Final = "/readyz"
PATH_METRICS: Final = "/metrics"
PATH_STATUS: Final = "/sojourn/v1/status"

GOLD: Final = "gold"
SILVER: Final = "silver"
BRONZE: Final = "bronze"
