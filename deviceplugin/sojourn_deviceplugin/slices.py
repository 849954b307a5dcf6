"""How many slices a GPU offers, what they are called, and which are out of service.

Pure: no NVML, no gRPC, no clock. Who holds which slice is `ledger`'s; health is `health`'s.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MESSAGE_LIMIT: Final = 4 * 1024**2
"""The kubelet refuses longer messages, and one carries the whole list (kubernetes#127049)."""


def count(*, total: int, driver: int, reserve: int, slice_bytes: int) -> int:
    """Whole slices in what is left after the driver's own memory and the configured reserve."""
    return max(0, total - driver - reserve) // slice_bytes


def short(uuid: str) -> str:
    """Eight characters that tell the GPUs of one node apart."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")[:8]


def device_id(uuid: str, n: int) -> str:
    """A slice's stable name; the kubelet remembers it over restarts of everything."""
    return f"{short(uuid)}-{n}"


@lru_cache(maxsize=64)
def device_ids(uuid: str, slices: int) -> tuple[str, ...]:
    """The names of all slices of a GPU, in order."""
    return tuple(device_id(uuid, n) for n in range(slices))


@lru_cache(maxsize=64)
def id_set(uuid: str, slices: int) -> frozenset[str]:
    """The same, to look up in."""
    return frozenset(device_ids(uuid, slices))


def message_bytes(ids: Collection[str], *, numa: bool) -> int:
    """Size of the list on the wire: per device two length bytes, tags, health, and topology.

    "Unhealthy" is the longer word; a list must fit whatever becomes of its devices.
    """
    each = 2 + 2 + 2 + len("Unhealthy") + (8 if numa else 0)
    return sum(each + len(name) for name in ids)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Memory that no grant accounts for, and the slices that it takes out of service."""

    bytes: int
    slices: int
    names: tuple[str, ...] = ()
    """Of the processes that use it, where they are known."""


def foreign(*, used: int, granted: int, slice_bytes: int) -> Foreign:
    """What is used above all grants together: at least this much is not ours, or is over a grant.

    NVML cannot tell whose memory is whose without the host's process ids, so this is a lower bound:
    a stranger inside the room of an idle grant is not seen until that grant fills up.
    """
    surplus = max(0, used - granted)
    return Foreign(bytes=surplus, slices=-(-surplus // slice_bytes))


def out_of_service(
    ids: tuple[str, ...], *, held: Collection[str], kept: Collection[str], wanted: int
) -> frozenset[str]:
    """Which slices to withdraw: free ones only, those withdrawn before first, then from the end.

    A slice that is held stays in service (its container could not restart otherwise), so fewer than
    `wanted` may be withdrawn.
    """
    free = [name for name in ids if name not in held]
    before = [name for name in free if name in kept]
    fresh = [name for name in reversed(free) if name not in kept]
    return frozenset((before + fresh)[:wanted])
