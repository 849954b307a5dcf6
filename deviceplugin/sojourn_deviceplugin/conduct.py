"""How the grants of a GPU behave towards each other, from two looks at their pages.

Pure. The pages are the pods' own words, except who may claim what; of a pod that never writes,
NVML's figures of its processes tell, where the plugin may see those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sojourn_api.arbiter import Limits, PageState, in_time

ALLOWED_STEPS: Final = 1
"""One step may have begun in the instant before the flag rose, and be counted after the look."""
BUSY_PERCENT: Final = 10
"""Of the SMs' time. What a step that was under way still takes is gone with the next sample."""
SAMPLED_NS: Final = 3_000_000_000
"""A flag that stood for so long stood over all of NVML's last sample, and the read before it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A grant's priority and page at one moment."""

    priority: int
    page: PageState
    busy_percent: int = 0
    """Of the SMs' time, by NVML; 0 where it is unknown."""
    stood_ns: int = 0
    """How long we have seen the flag stand, in one and the same rise."""


@dataclass(frozen=True, slots=True)
class Offence:
    """A grant that went on computing under a higher tier's flag."""

    slot: str
    steps: int
    under: str
    """Slot of the holder."""
    busy_percent: int = 0
    """By NVML, under a flag that stood for long."""


def raised(seen: Seen, *, now_ns: int, limits: Limits) -> bool:
    """Whether readers of lower tiers must stop for this page."""
    page = seen.page
    return (
        page.raised
        and page.locked
        and in_time(
            now_ns,
            beat_ns=page.beat_ns,
            since_ns=page.since_ns,
            stale_ns=limits.stale_ns,
            hold_ns=limits.hold_ns,
        )
    )


def offences(
    before: Mapping[str, Seen], after: Mapping[str, Seen], *, now_ns: int, limits: Limits
) -> list[Offence]:
    """Who computed while one and the same rise of a higher flag stood over both looks."""
    standing = {
        slot: seen
        for slot, seen in after.items()
        if raised(seen, now_ns=now_ns, limits=limits)
        and slot in before
        and before[slot].page.flag == seen.page.flag
    }
    found = []
    for slot, seen in after.items():
        if slot not in before:
            continue
        # Who was promoted in between is judged by what all could know all the time.
        own = max(seen.priority, before[slot].priority)
        higher = {
            other: flag
            for other, flag in standing.items()
            if min(flag.priority, before[other].priority) > own
        }
        offence = _offence(slot, before[slot], seen, higher)
        if offence is not None:
            found.append(offence)
    return found


def _offence(slot: str, before: Seen, after: Seen, higher: Mapping[str, Seen]) -> Offence | None:
    if not higher:
        return None
    highest = max(higher, key=lambda other: (higher[other].priority, other))
    steps = after.page.steps - before.page.steps
    sampled = any(flag.stood_ns >= SAMPLED_NS for flag in higher.values())
    busy = after.busy_percent if sampled else 0
    if steps <= ALLOWED_STEPS and busy < BUSY_PERCENT:
        return None
    return Offence(slot=slot, steps=max(0, steps), under=highest, busy_percent=busy)
