"""How the grants of a GPU behave towards each other, from two looks at their pages.

Pure. The pages are the pods' own words, except who may claim what; a pod that never writes shows
nothing here, and is seen by NVML's process figures at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sojourn_api.arbiter import Limits, PageState

ALLOWED_STEPS: Final = 1
"""One step may have begun in the instant before the flag rose, and be counted after the look."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A grant's priority and page at one moment."""

    priority: int
    page: PageState


@dataclass(frozen=True, slots=True)
class Offence:
    """A grant that went on computing under a higher tier's flag."""

    slot: str
    steps: int
    under: str
    """Slot of the holder."""


def raised(seen: Seen, *, now_ns: int, limits: Limits) -> bool:
    """Whether readers of lower tiers must stop for this page."""
    page = seen.page
    return (
        page.raised
        and page.locked
        and abs(now_ns - page.beat_ns) <= limits.stale_ns
        and now_ns - page.since_ns <= limits.hold_ns
    )


def offences(
    before: Mapping[str, Seen], after: Mapping[str, Seen], *, now_ns: int, limits: Limits
) -> list[Offence]:
    """Who began steps while one and the same rise of a higher flag stood over both looks."""
    standing = {
        slot: seen
        for slot, seen in after.items()
        if raised(seen, now_ns=now_ns, limits=limits)
        and slot in before
        and before[slot].page.flag == seen.page.flag
    }
    found = []
    for slot, seen in after.items():
        higher = [other for other in standing if standing[other].priority > seen.priority]
        if slot not in before or not higher:
            continue
        steps = seen.page.steps - before[slot].page.steps
        if steps > ALLOWED_STEPS:
            highest = max(higher, key=lambda other: (standing[other].priority, other))
            found.append(Offence(slot=slot, steps=steps, under=highest))
    return found
