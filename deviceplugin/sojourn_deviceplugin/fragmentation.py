"""How badly the free room of a node is cut up.

Pure, and of slices only, which come from the ledger: what fits in MIG mode NVML counts itself, an
allocator's inside is the runtime's to report. Nothing here is derived from NVML's used and free
bytes: they say nothing about it.
"""

from collections.abc import Mapping, Sequence


def scatter_percent(free: Sequence[int]) -> int:
    """How much of the free room lies outside the emptiest GPU; 0 with no free room at all."""
    total = sum(free)
    return round(100 * (1 - max(free) / total)) if total else 0


def stranded(free: Sequence[int], *, size: int) -> int:
    """Free slices on GPUs that cannot take a session of `size` slices."""
    return sum(room for room in free if room < size)


def expected_fragment(free: Sequence[int], sizes: Mapping[int, int]) -> float | None:
    """Free slices that the next session is expected not to be able to use (FGD on slices).

    `sizes` counts the sessions in use by size; with none, nobody can know: None.
    """
    sessions = sum(sizes.values())
    if not sessions:
        return None
    lost = sum(count * stranded(free, size=size) for size, count in sizes.items())
    return lost / sessions


def fragment_percent(free: Sequence[int], sizes: Mapping[int, int]) -> int | None:
    """The expected fragment as a part of all free slices."""
    lost = expected_fragment(free, sizes)
    total = sum(free)
    if lost is None:
        return None
    return round(100 * lost / total) if total else 0
