"""Who goes first, and who may be displaced by whom.

Pure comparisons of requests. The rule of the house: a waiting request displaces only strictly less
important ones. Two bounds soften it: who waited long comes to the head of the queue, and who was
displaced often keeps its place for a while, so that neither side waits for ever.
"""

from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.engine.request import Progress

AGED = 1000
"""Steps of waiting after which importance no longer counts in the queue (10 to 30 s on a CPU)."""
PATIENCE = 3
"""Displacements after which a request is left alone for QUANTUM steps each time it runs."""
SHARE = 64
"""One step in so many is everybody's; in the others the most important requests compute alone.
Too few steps to show in their p95, and enough that the rest never stands still."""
QUANTUM = 64


def effective(*, tier: int, asked: int) -> int:
    """Importance of a request (larger is more); nobody rises above the tier of the session.

    `asked` is the client's number: 0 is usual, larger is less important (as vLLM has it).
    """
    return tier - max(asked, 0)


def aged(request: Progress) -> bool:
    """It has waited so long that its importance does not count any more."""
    return request.waited >= AGED


def queue_order(request: Progress) -> tuple[bool, int, bool, int]:
    """Sort key of those who wait: the aged, then by importance, the parked before the new."""
    old = aged(request)
    return (not old, 0 if old else -request.priority, not request.started, request.arrival)


def displaced(request: Progress) -> int:
    """How often it counts as displaced once it runs: who waited that long, often, or those whom
    it was preferred to would take its place at once.
    """
    return max(request.parks, PATIENCE) if aged(request) else request.parks


def rank(request: Progress) -> tuple[int, int]:
    """Sort key of those who run: the most important first, then the oldest."""
    return (-request.priority, request.arrival)


def turn(request: Progress) -> tuple[int, bool, int]:
    """Sort key of those who run for the next step's tokens.

    Among equals who needs at most a block's worth goes first: a chat that returns does not wait
    for a long prompt. A long one that was passed over for QUANTUM steps is not any more.
    """
    long = request.total - request.computed > BLOCK and request.ran < QUANTUM
    return (-request.priority, long, request.arrival)


def displaceable(victim: Progress, *, by: Progress) -> bool:
    """Whether `by`, waiting, may take the place of `victim`, running."""
    if victim.parks >= PATIENCE and victim.ran < QUANTUM:
        return False
    if victim.held:  # it cannot use its place now
        return victim.priority <= by.priority
    return victim.priority < by.priority
