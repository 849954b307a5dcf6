"""Who comes before whom: the order of claimants, who may pause whom, and which victim is cheapest.

Pure comparisons. Priorities come from tiers alone, so that pausing always goes strictly downwards.
"""

from dataclasses import dataclass

from sojourn_operator.plan.state import Phase, Session, State, Tier

LOWEST = -1_000_000_000
"""Priority of a session whose tier is unknown: it claims after all others and pauses nobody."""

AGING = 900.0
"""Seconds of waiting after which a session goes before younger ones of any tier that can be
paused.

A guess: well above the minimum run times, so that ages do not drive pauses.
"""


def priority_of(state: State, session: Session) -> int:
    """The priority of the session's tier."""
    tier = state.tiers.get(session.tier)
    return LOWEST if tier is None else tier.priority


def has_aged(state: State, session: Session) -> bool:
    """Whether it has waited so long that it stands in line with the highest pausable tier."""
    return session.phase in (Phase.WAITING, Phase.PAUSED) and state.now >= session.since + AGING


def band_of(state: State, session: Session) -> int:
    """The priority by which it claims free room. Whom it may pause, its tier alone decides."""
    own = priority_of(state, session)
    tier = state.tiers.get(session.tier)
    if tier is None or never_paused(tier) or not has_aged(state, session):
        return own
    peers = (one.priority for one in state.tiers.values() if not never_paused(one))
    return max(own, *peers)


def claim_order(state: State, session: Session) -> tuple[int, bool, float, str]:
    """Highest band first, in it those that waited too long, then the oldest."""
    aged = has_aged(state, session)
    return (-band_of(state, session), not aged, session.created, session.key)


def never_paused(tier: Tier) -> bool:
    """Whether nobody may pause this tier (Gold); its claims ignore minimum run times."""
    return not tier.pausable_by


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a session may be paused for a claimant; `after` is when its minimum run time ends."""

    pausable: bool
    after: float | None = None


def may_pause(state: State, claimant: Session, victim: Session) -> Verdict:
    """Only strictly lower tiers that name the claimant's tier, and only after their minimum run
    time.
    """
    above, below = state.tiers.get(claimant.tier), state.tiers.get(victim.tier)
    if above is None or below is None or victim.phase not in (Phase.STARTING, Phase.RUNNING):
        return Verdict(pausable=False)
    if below.priority >= above.priority or above.name not in below.pausable_by:
        return Verdict(pausable=False)
    protected_until = victim.since + below.min_run
    if never_paused(above) or state.now >= protected_until:
        return Verdict(pausable=True)
    return Verdict(pausable=False, after=protected_until)
