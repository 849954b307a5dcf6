"""Who comes before whom: the order of claimants, who may pause whom, and which victim is cheapest.

Pure comparisons. Priorities come from tiers alone, so that pausing always goes strictly downwards.
"""

from dataclasses import dataclass

from sojourn_operator.plan.state import Phase, Session, State, Tier

LOWEST = -1_000_000_000
"""Priority of a session whose tier is unknown: it claims after all others and pauses nobody."""


def priority_of(state: State, session: Session) -> int:
    """The priority of the session's tier."""
    tier = state.tiers.get(session.tier)
    return LOWEST if tier is None else tier.priority


def claim_order(state: State, session: Session) -> tuple[int, float, str]:
    """Highest tier first, then oldest."""
    return (-priority_of(state, session), session.created, session.key)


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
