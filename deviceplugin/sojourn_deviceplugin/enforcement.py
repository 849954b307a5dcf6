"""Who holds a grant to its memory: the strongest of those that are known to do so now. Pure."""

from collections.abc import Iterable
from enum import StrEnum

from sojourn_deviceplugin.ledger import Grant


class Enforcement(StrEnum):
    """From the strongest to the weakest."""

    DRIVER = "driver"
    """A limit of the driver on the pod's cgroups, as the driver itself tells it."""
    MPS = "mps"
    """The MPS daemon, by what the container was told at its start."""
    RUNTIME = "runtime"
    """The pod's own runtime, which is alive and keeps a pool of fixed size."""
    NONE = "none"


def of(grant: Grant, *, capped: bool, mps: bool, alive: bool) -> Enforcement:
    """`capped`: by the driver; `mps`: the daemon answers; `alive`: a process owns the page."""
    if capped:
        return Enforcement.DRIVER
    if grant.mps and mps:
        return Enforcement.MPS
    return Enforcement.RUNTIME if alive else Enforcement.NONE


def on_several(grants: Iterable[Grant], grant: Grant) -> bool:
    """Whether its container holds slices of another GPU as well."""
    return any(
        other.holder == grant.holder and other.ordinal != grant.ordinal
        for other in grants
        if other.holder is not None
    )
