"""What runtimes say of the inside of their allocators, as far as it can be believed.

Pure. The words are a pod's own: what is old, contradicts itself or exceeds the GPU is unknown,
never 0, and never reaches a status that the API server would then refuse as a whole.
"""

from collections.abc import Callable, Iterable
from typing import Final

from sojourn_api.arbiter import Allocator, PageState
from sojourn_api.objects import AllocatorUse

from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer

FRESH_NS: Final = 60_000_000_000
"""Figures older than this are unknown."""


def told(page: PageState | None, *, limit: int, now_ns: int) -> Allocator | None:
    """The page's record if it is fresh and possible; `limit` is the GPU's memory in bytes."""
    inside = page.allocator if page else None
    # A record may be made between the look at the clock and the look at the page.
    if inside is None or abs(now_ns - inside.at_ns) >= FRESH_NS:
        return None
    parts = (inside.used, inside.inactive_split or 0, inside.largest_free or 0)
    possible = inside.reserved <= limit and all(part <= inside.reserved for part in parts)
    return inside if possible else None


def uses(
    offer: Offer,
    grants: Iterable[Grant],
    page: Callable[[Grant], PageState | None],
    *,
    now_ns: int,
) -> tuple[AllocatorUse, ...]:
    """One GPU's entries, by pod: a pod has one entry, whatever containers it has."""
    found: dict[str, AllocatorUse] = {}
    for grant in grants:
        if grant.holder is None or grant.ordinal != offer.gpu.ordinal:
            continue
        pod = f"{grant.holder.namespace}/{grant.holder.pod}"
        inside = told(page(grant), limit=offer.gpu.memory_bytes, now_ns=now_ns)
        if inside is not None:
            found.setdefault(pod, _use(pod, inside))
    return tuple(found[pod] for pod in sorted(found))


def _use(pod: str, inside: Allocator) -> AllocatorUse:
    return AllocatorUse(
        pod=pod,
        reserved=inside.reserved,
        used=inside.used,
        inactive_split=inside.inactive_split,
        largest_free=inside.largest_free,
    )
