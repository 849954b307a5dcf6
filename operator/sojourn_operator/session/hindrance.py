"""What keeps the container of a new pod from running, in one word and one sentence.

Pure. How long it may last before the start has failed is said in `life`, what to do about it in
`remedies`.
"""

import re
from dataclasses import dataclass
from typing import Final

from sojourn_operator import reasons
from sojourn_operator.seen.pod import Pod

_CLAIM: Final = re.compile("persistentvolumeclaim", re.IGNORECASE)
_NO_CLAIM: Final = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
"""The scheduler's words; of an unbound claim it does not say the name."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    """`early` is the reason that is shown until the start is given up; empty: nothing is shown."""

    reason: str
    message: str
    early: str
    hopeless: bool = False
    """No time mends it."""


def of(pod: Pod, *, node: str) -> Hindrance | None:
    """What the scheduler or the kubelet waits for to start it on its node, if they tell."""
    if pod.started:
        return None
    if pod.waiting:
        reason, _, _ = pod.waiting.partition(":")
        return Hindrance(reason, f"its container does not run: {pod.waiting}", reason)
    if pod.unschedulable and not pod.node:
        return _unscheduled(pod, node=node)
    if pod.unprepared:
        message = f"node {node} did not mount its volumes or set up its network"
        return Hindrance(reasons.NOT_PREPARED, message, "")
    return None


def _unscheduled(pod: Pod, *, node: str) -> Hindrance:
    """A claim is no node's fault: it keeps the pod from all of them."""
    if missing := _NO_CLAIM.search(pod.unschedulable):
        message = f"PersistentVolumeClaim {missing[1]} is not in namespace {pod.namespace}"
        reason = reasons.CLAIM_NOT_FOUND
        return Hindrance(reason, message, reason, hopeless=True)
    if _CLAIM.search(pod.unschedulable):
        names = " or ".join(pod.claims)
        message = f"PersistentVolumeClaim {names} cannot be used: {pod.unschedulable}"
        return Hindrance(reasons.CLAIM_NOT_BOUND, message, reasons.CLAIM_NOT_BOUND)
    message = f"not scheduled to {node}: {pod.unschedulable}"
    return Hindrance(reasons.UNSCHEDULABLE, message, reasons.STARTING)
