"""What to do about each reason for which a session is not ready: one sentence after what is wrong.

Pure. What a runtime reports carries its own remedy (see its errors) and is passed on as it is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sojourn_api.names import ANNOTATION_WAKE, OVER_MEMORY, PORT, READY, YIELD_IGNORED
from sojourn_api.objects import ObjectMeta

from sojourn_operator import reasons
from sojourn_operator.act.status import FALSE, Verdict
from sojourn_operator.plan import actions

_EXPLAIN: Final = (
    "`kubectl exec -n {system} deploy/sojourn-operator -- sojourn-operator explain "
    "{namespace}/{name}` tells of each GPU why not"
)
_ANOTHER_NODE: Final = (
    "another node is tried; kubectl describe node tells what takes this one's room"
)
_IMAGE: Final = "check the image's name, its registry and spec.template.imagePullSecrets"
_COMMAND: Final = (
    "see kubectl describe pod; an image of one's own needs the command sojourn-runtime"
)

NODE_OUT_OF_MEMORY: Final = "NodeOutOfMemory"
"""Cause of an OOMKilled without a limit; shows nowhere itself."""

REMEDIES: Final[Mapping[str, str]] = {
    # On its way, or resting: nothing is wrong.
    reasons.STARTING: "it answers soon; kubectl describe pod tells what its start waits for",
    reasons.PAUSING: "its context is being saved; nothing has to be done",
    reasons.PAUSED: "it comes back by itself when there is room, unless it shall rest or go",
    reasons.DELETING: "nothing has to be done",
    reasons.SUSPENDED: "set it to false to bring the session back",
    reasons.IDLE: (
        "a request through the gateway wakes it, or: kubectl annotate llms -n {namespace} {name} "
        f"{ANNOTATION_WAKE}=$(date -u +%FT%TZ) --overwrite"
    ),
    actions.ROOM_IS_FREED: "contexts are being saved there; nothing has to be done",
    actions.BACK_OFF: "it starts again by itself, or at once when its spec is changed",
    # Waiting for others.
    reasons.WAITING_FOR_ROOM: f"free room, add a GPU or ask for less; {_EXPLAIN}",
    actions.NO_ROOM: f"free room, add a GPU or ask for less; {_EXPLAIN}",
    actions.NODES_OUT: f"bring such a node back, or add a GPU; {_EXPLAIN}",
    actions.NO_GPU: (
        "change spec.resources, spec.placement or spec.contextLength, or add such a GPU; "
        "kubectl get gpunodes tells what there is"
    ),
    actions.QUOTA: "raise spec.quota of the Tenant, or end another session of it",
    # Wrongly asked.
    reasons.INVALID_SPEC: "correct the spec; kubectl explain llmsession.spec tells what it may be",
    reasons.INVALID_TEMPLATE: "correct spec.template",
    reasons.UNKNOWN_MODEL: "create it, or see kubectl get llmmodels",
    actions.UNKNOWN_TIER: "create it, or see kubectl get qostiers",
    actions.TIER_FORBIDDEN: "change spec.tier, or add the tier to spec.tiers of the Tenant",
    actions.IMPOSSIBLE: "change spec.resources",
    reasons.CONTEXT_TOO_LONG: "lower spec.contextLength",
    reasons.SERVICE_TAKEN: "rename one of them",
    # Its place, its node, its pod.
    reasons.NODE_LOST: "its last checkpoint is taken up elsewhere; see kubectl describe node",
    reasons.POD_LOST: "it starts again from its last checkpoint; see who deletes pods by force",
    reasons.POD_REFUSED: "change what the message names: a quota, a policy, or spec.template",
    reasons.UNSCHEDULABLE: _ANOTHER_NODE,
    reasons.CLAIM_NOT_FOUND: "create it (examples/namespace.yaml)",
    reasons.CLAIM_NOT_BOUND: (
        "kubectl describe pvc tells what it waits for, such as a PersistentVolume or a provisioner"
    ),
    reasons.NOT_PREPARED: (
        "kubectl get events names what failed, such as FailedMount; where a mount takes so long, "
        "raise operator.pendingSeconds of the chart"
    ),
    "UnexpectedAdmissionError": _ANOTHER_NODE,
    "NodeAffinity": _ANOTHER_NODE,
    "OutOfcpu": _ANOTHER_NODE,
    "OutOfmemory": _ANOTHER_NODE,
    "OutOfpods": _ANOTHER_NODE,
    "Evicted": _ANOTHER_NODE,
    "NodeShutdown": "it starts again on another node, or on this one when it is back",
    "Terminated": "it starts again on another node, or on this one when it is back",
    # Its container.
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ErrImageNeverPull": (
        "load the image onto the nodes, or let it be pulled: images.pullPolicy of the chart, or "
        "spec.template.imagePullPolicy"
    ),
    "CreateContainerConfigError": (
        "create the Secret or ConfigMap that the message names, with its key, in the session's "
        "namespace, or change spec.apiKeySecretRef or spec.template"
    ),
    "CreateContainerError": _COMMAND,
    "RunContainerError": _COMMAND,
    "StartError": _COMMAND,
    "ContainerCannotRun": _COMMAND,
    "ContainerStatusUnknown": "see kubectl describe node: it lost sight of the container",
    "OOMKilled": "raise spec.template.resources.limits.memory, or choose a smaller model",
    NODE_OUT_OF_MEMORY: (
        "see kubectl describe node for what takes its memory, and name what the session needs in "
        "spec.template.resources.requests.memory, so that it goes where there is room"
    ),
    # What it runs.
    reasons.NOT_ANSWERING: (
        f"see the pod's log, or which NetworkPolicy keeps the operator from its port {PORT}"
    ),
    reasons.ENGINE_STALLED: (
        "see the pod's log; if it lasts, delete the pod: it starts again from what is saved"
    ),
    reasons.CRASHED: "see the log of its pod, which is kept until the next try",
    OVER_MEMORY: "raise spec.resources.slices, or run an image that keeps to its grant",
    YIELD_IGNORED: "run an image that stops when the arbiter asks (see sojourn_runtime.guest)",
}
"""Words in braces are for `filled`."""
OTHERWISE: Final = "see kubectl describe pod, and the pod's log"


def remedied(reason: str, message: str, *, otherwise: str = OTHERWISE) -> str:
    """What is wrong, and what to do about it; `otherwise` for words of the kubelet's to come."""
    remedy = REMEDIES.get(reason, otherwise)
    return f"{message}; {remedy}" if remedy and remedy not in message else message


def not_ready(reason: str, message: str, *, cause: str = "", otherwise: str = OTHERWISE) -> Verdict:
    """The Ready condition of a session that does not answer; no other place makes one.

    `cause`: the finer reason that the remedy is for, where there is one.
    """
    known = cause if cause in REMEDIES else reason
    return Verdict(READY, FALSE, reason, remedied(known, message, otherwise=otherwise))


def filled(verdict: Verdict, meta: ObjectMeta, *, system: str = "") -> Verdict:
    """With commands that can be run as they stand; `system` is the operator's own namespace."""
    message = verdict.message.replace("{namespace}", meta.namespace).replace("{name}", meta.name)
    return replace(verdict, message=message.replace("{system}", system))
