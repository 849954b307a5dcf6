"""The numbers of a GPUNode that never stand still, and when a change of them is worth a write.

Pure: times are given. Slices, health and placements are told at once and are not here; each write
wakes every watcher, so these wait until they have moved far enough, and long enough after the last.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from sojourn_api.objects import AllocatorUse, GpuLoad

LOAD_STEP: Final = 10
"""Points of load that make a difference to anybody who chooses a GPU."""
PARTS: Final = 20
"""An allocator's figure has moved when it did by a 20th of what is reserved."""
EVERY_SECONDS: Final = 15.0
"""Between two changes of these figures."""
FOREIGN_STEP: Final = 256 * 1024**2
"""Foreign memory is told in steps of this: what a reader of status can act on."""


@dataclass(frozen=True, slots=True)
class Figures:
    """By a GPU's ordinal. What is unknown is absent, or None."""

    loads: Mapping[int, GpuLoad] = field(default_factory=dict)
    allocators: Mapping[int, tuple[AllocatorUse, ...]] = field(default_factory=dict)
    foreign: Mapping[int, int] = field(default_factory=dict)


class Steady:
    """Holds on to the figures that were told."""

    def __init__(self, *, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._at = float("-inf")
        self._told = Figures()

    def tell(self, found: Figures, *, now: float) -> Figures:
        """What to tell, `found` being the truth: new figures, or the old ones that still hold."""
        foreign = {
            ordinal: stepped(size, self._told.foreign.get(ordinal, 0))
            for ordinal, size in found.foreign.items()
        }
        if now - self._at >= self._every and moved(self._told, found):
            self._told, self._at = replace(found, foreign=foreign), now
        else:
            self._told = replace(still_known(self._told, found), foreign=foreign)
        return self._told


def stepped(size: int, told: int) -> int:
    """Foreign bytes in whole steps; within a quarter of a step of the edge nothing changes."""
    slack = FOREIGN_STEP // 4
    if size and told and told - FOREIGN_STEP - slack < size <= told + slack:
        return told
    return -(-size // FOREIGN_STEP) * FOREIGN_STEP


def moved(told: Figures, found: Figures) -> bool:
    """Whether a reader would act differently on what is found."""
    before, after = dict(_numbers(told)), dict(_numbers(found))
    if before.keys() != after.keys():
        return True
    return any(_far(before[key][0], value, step) for key, (value, step) in after.items())


def _far(before: int, after: int, step: int) -> bool:
    """Far, or at rest: what has ended shall not look like a little of it for ever."""
    return abs(after - before) >= step or (after == 0 and before != 0)


Key = tuple[str, ...]


def _numbers(figures: Figures) -> Iterator[tuple[Key, tuple[int, int]]]:
    """Each known number, and how far it has to move."""
    for ordinal, load in figures.loads.items():
        for name in (part.name for part in fields(load)):
            value = getattr(load, name)
            if value is not None:
                yield (str(ordinal), name), (value, LOAD_STEP)
    for ordinal, uses in figures.allocators.items():
        for use in uses:
            step = max(1, use.reserved // PARTS)
            for name in ("reserved", "used", "inactive_split", "largest_free"):
                value = getattr(use, name)
                if value is not None:
                    yield (str(ordinal), use.pod, name), (value, step)


def still_known(told: Figures, found: Figures) -> Figures:
    """What was told, less what is unknown by now: that is said at once."""
    loads = {
        ordinal: _load_still_known(load, found.loads[ordinal])
        for ordinal, load in told.loads.items()
        if ordinal in found.loads
    }
    allocators = {
        ordinal: tuple(use for use in uses if use.pod in {now.pod for now in there})
        for ordinal, uses in told.allocators.items()
        if (there := found.allocators.get(ordinal))
    }
    return Figures(loads=loads, allocators=allocators)


def _load_still_known(told: GpuLoad, found: GpuLoad) -> GpuLoad:
    return GpuLoad(
        busy=None if found.busy is None else told.busy,
        sm=None if found.sm is None else told.sm,
        bandwidth=None if found.bandwidth is None else told.bandwidth,
    )
