"""A QoSTier as the plan knows it. Pure; light, so that questions from files need no cluster."""

from sojourn_api.objects import Tier

from sojourn_operator import plan


def planned(tier: Tier) -> plan.Tier:
    """What the plan has to know of it."""
    return plan.Tier(
        name=tier.meta.name,
        priority=tier.priority,
        guaranteed_share=tier.guaranteed_share,
        pausable_by=frozenset(tier.pausable_by),
        min_run=float(tier.min_run_seconds),
        cool_down=float(tier.cool_down_seconds),
    )
