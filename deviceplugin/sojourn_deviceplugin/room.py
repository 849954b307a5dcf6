"""What is free on a node, from what is offered and what is granted. Pure sums, for reports."""

from collections.abc import Iterable

from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer


def held_slices(grants: Iterable[Grant], ordinal: int) -> int:
    """Slices of a GPU in somebody's hands."""
    return sum(grant.slices for grant in grants if grant.ordinal == ordinal)


def free_slices(offer: Offer, grants: Iterable[Grant]) -> int:
    """Slices that a new session could get."""
    return max(0, offer.in_service - held_slices(grants, offer.gpu.ordinal))


def sizes_in_use(grants: Iterable[Grant]) -> dict[int, int]:
    """How many grants there are of each size."""
    sizes: dict[int, int] = {}
    for grant in grants:
        sizes[grant.slices] = sizes.get(grant.slices, 0) + 1
    return sizes
