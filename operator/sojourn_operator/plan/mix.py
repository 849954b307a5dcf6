"""The mix of requests that the policy packs for: which kinds there are and how many of each.

`follow` lets a mix trail what sessions exist with hysteresis: a small change keeps the old
object, so that scores need not be rebuilt for every arrival. The mix is part of the State: same
state, same plan.
"""

from collections import Counter
from collections.abc import Iterable

from sojourn_operator.plan.state import Mix, Request

NOTABLE = 0.25
"""Half of the sum of changed shares that counts as another mix: a guess; prices move slowly."""


def mix_of(requests: Iterable[Request]) -> Mix:
    """The mix of these requests, in an order that depends on nothing but them."""
    counts = Counter(requests)
    return Mix(tuple(sorted(counts.items(), key=lambda item: (-item[1], repr(item[0])))))


def follow(before: Mix, requests: Iterable[Request]) -> Mix:
    """`before` itself unless the requests have moved notably away from it."""
    now = Counter(requests)
    total = sum(now.values())
    if not total:
        return before
    if before.counts and total <= 2 * before.total:
        old = dict(before.counts)
        drift = sum(
            abs(now.get(kind, 0) / total - old.get(kind, 0) / before.total)
            for kind in now.keys() | old.keys()
        )
        if drift / 2 < NOTABLE:
            return before
    return mix_of(now.elements())
