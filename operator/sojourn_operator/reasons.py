"""The words that conditions and events use for a reason: one word each, made once.

A reason that the plan gives (`plan.actions`) or the runtime reports in its termination message is
passed on as it is; here stand those that the shell finds out by itself.
"""

from typing import Final

from sojourn_api import names

# Ready.
SERVING: Final = "Serving"
STARTING: Final = "Starting"
NOT_ANSWERING: Final = "NotAnswering"
ENGINE_STALLED: Final = "EngineStalled"
PAUSING: Final = "Pausing"
PAUSED: Final = "Paused"
DELETING: Final = "Deleting"
WAITING_FOR_ROOM: Final = "WaitingForRoom"
INVALID_SPEC: Final = names.INVALID_SPEC
INVALID_TEMPLATE: Final = names.INVALID_TEMPLATE
UNKNOWN_MODEL: Final = names.UNKNOWN_MODEL
SERVICE_TAKEN: Final = "ServiceNameTaken"

# Placed.
PLACING: Final = "Placing"
"""The place is written down; only under this reason is its pod created."""
PLACED: Final = "Placed"

# Paused. `RUNNING` is the only reason of Paused=False that does not mean a pause under way.
RUNNING: Final = "Running"
NOT_STARTED: Final = "NotStarted"
SUSPENDED: Final = "Suspended"
IDLE: Final = names.REASON_IDLE
DELETED: Final = "Deleted"
NODE_DRAINING: Final = "NodeDraining"
EVICTED: Final = "Evicted"
NODE_PRESSURE: Final = "NodePressure"
NODE_SHUTDOWN: Final = "NodeShutdown"
POD_DELETED: Final = "PodDeleted"
ENDED: Final = "RuntimeEnded"
NODE_LOST: Final = "NodeLost"
POD_LOST: Final = "PodLost"

# Failures that the shell sees without a report of the runtime.
CRASHED: Final = "Crashed"
UNSCHEDULABLE: Final = "Unschedulable"
POD_REFUSED: Final = "PodRefused"
NOT_PREPARED: Final = "PodNotPrepared"
CLAIM_NOT_FOUND: Final = "ClaimNotFound"
CLAIM_NOT_BOUND: Final = "ClaimNotBound"

# ContextSaved.
SAVED: Final = "Saved"
EMPTY: Final = "NothingToSave"
UNSAVED: Final = "InMemory"
NO_REPORT: Final = "NoReport"

# TargetMet.
MET: Final = "Met"
MISSED: Final = "Missed"
NO_TRAFFIC: Final = "NoTraffic"
NO_TARGET: Final = "NoTarget"

# Ready of models and tenants.
NO_GPU: Final = "NoGPU"
USABLE: Final = "Usable"
NUMBERS_DIFFER: Final = "NumbersDiffer"
MODEL_MISMATCH: Final = names.MODEL_MISMATCH
CONTEXT_TOO_LONG: Final = names.CONTEXT_TOO_LONG
TOO_LARGE: Final = "TooLarge"
PLUGIN_GONE: Final = names.PLUGIN_GONE
NODE_NOT_READY: Final = names.NODE_NOT_READY
ACTIVE: Final = "Active"
NAMESPACE_TAKEN: Final = "NamespaceTaken"
GUARANTEE_NOT_COVERED: Final = "GuaranteeNotCovered"

# Events that are no condition's reason.
EVENT_STARTED: Final = "Started"
EVENT_PREEMPTING: Final = "Preempting"
EVENT_PREEMPTED: Final = "Preempted"
EVENT_RESUMED: Final = "Resumed"
EVENT_CONTEXT_SAVED: Final = "ContextSaved"
EVENT_NOT_SAVED: Final = "ContextNotSaved"
EVENT_NOT_EXACT: Final = "NotExact"
EVENT_DAMAGED: Final = "ContextDamaged"
EVENT_NOT_PURGED: Final = "ContextNotDeleted"
EVENT_GENERATION: Final = "GenerationChanged"
EVENT_WOULD_MOVE: Final = "WouldMove"
EVENT_TIER_RESTORED: Final = "TierRestored"
EVENT_SERVICE_RESTORED: Final = "ServiceRestored"
EVENT_FAILED: Final = "Failed"
EVENT_NOT_WOKEN: Final = "NotWoken"
EVENT_REJECTED: Final = "Rejected"


def preempted_by(tier: str) -> str:
    """The reason of a pause for a session of this tier, as "PreemptedByGold"."""
    words = tier.replace(".", "-").split("-")
    return "PreemptedBy" + "".join(word[:1].upper() + word[1:] for word in words)
