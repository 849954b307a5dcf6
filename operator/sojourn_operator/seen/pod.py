"""A session's pod as it is seen: raw object in, frozen facts out.

Pure, and only of pods: `act.pods` says how one is built, `life` what follows from its state.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sojourn_api.names import (
    ANNOTATION_CONTEXT_LENGTH,
    ANNOTATION_GPUS,
    CONTAINER,
    FINALIZER_POD,
    LABEL_SESSION,
)
from sojourn_api.parse import parse_meta
from sojourn_api.quantity import quantity
from sojourn_api.reader import Reader

from sojourn_operator.clock import seconds

FORCED_SECONDS: Final = 30.0
"""After a forced deletion the kubelet has so long to report the end. A guess; it needs two."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """How the runtime's container ended."""

    exit_code: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a session. Times are seconds since 1970; None means not (yet)."""

    name: str
    namespace: str
    uid: str
    session: str
    owner_uid: str
    epoch: int
    node: str
    phase: str
    created: float
    ready: bool
    ready_since: float
    ready_message: str
    finalizers: tuple[str, ...]
    deleted_at: float | None
    """When its grace period ends, if it is being deleted."""
    grace: int
    ip: str
    reason: str
    message: str
    disruption: str
    unschedulable: str
    waiting: str
    """Why the container does not run, as "ImagePullBackOff: ..."."""
    started: bool
    terminated: Terminated | None
    labels: Mapping[str, str]
    slices: Mapping[int, int]
    """By ordinal: what the operator counted for it."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    """What its containers request."""
    memory_limit: int = 0
    """Bytes that the runtime's container may take; 0: as many as the node has."""
    context_length: int = 0
    """Tokens that it holds at most; 0 where it does not say."""
    claims: tuple[str, ...] = ()
    """The PersistentVolumeClaims that it mounts."""
    unprepared: bool = False
    """Its kubelet has yet to mount its volumes or to set up its network; an image comes after."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.session}"

    @property
    def held(self) -> bool:
        """Whether our finalizer keeps it until its end is recorded."""
        return FINALIZER_POD in self.finalizers

    @property
    def deleting(self) -> bool:
        return self.deleted_at is not None

    @property
    def touched(self) -> bool:
        """Whether its folder in the store may exist: the kubelet makes it for the container."""
        return self.started or self.waiting.startswith(("CreateContainerError", "RunContainer"))

    def ended(self, now: float) -> bool:
        """Whether nothing of it runs any more, as far as the API server can know."""
        if self.phase in ("Succeeded", "Failed"):
            return True
        if self.deleted_at is None:
            return False
        never_bound = not self.node
        forced = self.grace == 0 and now > self.deleted_at + FORCED_SECONDS
        return never_bound or forced


def parse_pod(raw: Mapping[str, object]) -> Pod:
    """A pod that carries a session's labels."""
    meta = parse_meta(raw)
    root = Reader(raw)
    status = root.part("status")
    conditions = {entry.text("type"): entry for entry in status.parts("conditions")}
    container = next(
        (c for c in status.parts("containerStatuses") if c.text("name", "") == CONTAINER),
        Reader({}),
    )
    state = container.part("state")
    ready = conditions.get("Ready", Reader({}))
    raw_meta = root.part("metadata")
    deletion = raw_meta.text("deletionTimestamp", "")
    owner = next(raw_meta.parts("ownerReferences"), Reader({}))
    cpu_milli, memory_bytes = requests_of(root.part("spec"))
    session = owner.text("name", "") or meta.labels.get(LABEL_SESSION, "")
    return Pod(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        session=session,
        owner_uid=owner.text("uid", ""),
        epoch=_epoch(meta.name, session),
        node=root.part("spec").text("nodeName", ""),
        phase=status.text("phase", "Pending"),
        created=seconds(meta.created),
        ready=ready.text("status", "") == "True",
        ready_since=seconds(ready.text("lastTransitionTime", "")),
        ready_message=ready.text("message", ""),
        finalizers=meta.finalizers,
        deleted_at=seconds(deletion) if deletion else None,
        grace=raw_meta.number("deletionGracePeriodSeconds", 0),
        ip=status.text("podIP", ""),
        reason=status.text("reason", ""),
        message=status.text("message", ""),
        disruption=_true_reason(conditions, "DisruptionTarget"),
        unschedulable=_unschedulable(conditions),
        waiting=_waiting(state),
        started=state.has("running") or state.has("terminated"),
        terminated=_terminated(state),
        labels=meta.labels,
        slices=_slices(meta.annotations),
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        memory_limit=_memory_limit(root.part("spec")),
        context_length=_number(meta.annotations.get(ANNOTATION_CONTEXT_LENGTH, "")),
        claims=_claims(root.part("spec")),
        unprepared=_is_false(conditions, "PodReadyToStartContainers"),
    )


def requests_of(spec: Reader) -> tuple[int, int]:
    """CPU in thousandths and memory in bytes that a pod takes of its node, as the scheduler counts.

    Init containers run one after another before the others, but for those that go on beside them.
    """
    return _sum(spec, "cpu", 1000), _sum(spec, "memory", 1)


def _sum(spec: Reader, name: str, scale: int) -> int:
    beside = first = 0
    for container in spec.parts("initContainers"):
        amount = _amount(container.part("resources").part("requests"), name, scale)
        if container.text("restartPolicy", "") == "Always":
            beside += amount
            first = max(first, beside)
        else:
            first = max(first, beside + amount)
    for container in spec.parts("containers"):
        beside += _amount(container.part("resources").part("requests"), name, scale)
    return max(beside, first) + _amount(spec.part("overhead"), name, scale)


def _memory_limit(spec: Reader) -> int:
    found = (one for one in spec.parts("containers") if one.text("name", "") == CONTAINER)
    return sum(_amount(one.part("resources").part("limits"), "memory", 1) for one in found)


def _claims(spec: Reader) -> tuple[str, ...]:
    volumes = spec.parts("volumes")
    found = (one.part("persistentVolumeClaim").text("claimName", "") for one in volumes)
    return tuple(sorted(set(found) - {""}))


def _amount(amounts: Reader, name: str, scale: int) -> int:
    return int(quantity(str(amounts.raw.get(name) or "0")) * scale)


def _epoch(name: str, session: str) -> int:
    """From the name, which nobody can change; 0 for a pod that is no start of its session."""
    return _number(name.removeprefix(f"{session}-"))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _true_reason(conditions: Mapping[str, Reader], kind: str) -> str:
    entry = conditions.get(kind)
    if entry is None or entry.text("status", "") != "True":
        return ""
    return entry.text("reason", "")


def _is_false(conditions: Mapping[str, Reader], kind: str) -> bool:
    entry = conditions.get(kind)
    return entry is not None and entry.text("status", "") == "False"


def _unschedulable(conditions: Mapping[str, Reader]) -> str:
    if not _is_false(conditions, "PodScheduled"):
        return ""
    entry = conditions["PodScheduled"]
    return entry.text("message", "") or entry.text("reason", "")


def _waiting(state: Reader) -> str:
    if not state.has("waiting"):
        return ""
    waiting = state.part("waiting")
    reason = waiting.text("reason", "")
    if reason in ("", "ContainerCreating", "PodInitializing"):
        return ""
    message = waiting.text("message", "")
    return f"{reason}: {message}" if message else reason


def _terminated(state: Reader) -> Terminated | None:
    if not state.has("terminated"):
        return None
    end = state.part("terminated")
    code = end.raw.get("exitCode")
    return Terminated(
        exit_code=code if isinstance(code, int) else 1,
        reason=end.text("reason", ""),
        message=end.text("message", ""),
    )


def _slices(annotations: Mapping[str, str]) -> dict[int, int]:
    """What the operator counted for it; a pod must not vanish for a spoilt annotation."""
    try:
        entries = json.loads(annotations.get(ANNOTATION_GPUS, "[]"))
        return {int(entry["ordinal"]): int(entry["slices"]) for entry in entries}
    except (ValueError, KeyError, TypeError):
        return {}
