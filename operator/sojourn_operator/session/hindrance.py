"""What keeps the container of a new pod from running, in one word and one sentence.

Pure. How long it may last before the start has failed is said in `life`, what to do about it in
`remedies`.
"""

from dataclasses import dataclass

from sojourn_operator import reasons
from sojourn_operator.seen.pod import Pod


@dataclass(frozen=True, slots=True)
class Hindrance:
    """`early` is the reason that is shown until the start is given up; empty: nothing is shown."""

    reason: str
    message: str
    early: str


def of(pod: Pod, *, node: str) -> Hindrance | None:
    """What the scheduler or the kubelet waits for to start it on its node, if they tell."""
    if pod.started:
        return None
    if pod.waiting:
        reason, _, _ = pod.waiting.partition(":")
        return Hindrance(reason, f"its container does not run: {pod.waiting}", reason)
    if pod.unschedulable and not pod.node:
        message = f"not scheduled to {node}: {pod.unschedulable}"
        return Hindrance(reasons.UNSCHEDULABLE, message, reasons.STARTING)
    if pod.unprepared:
        message = f"node {node} did not mount its volumes or set up its network"
        return Hindrance(reasons.NOT_PREPARED, message, "")
    return None
