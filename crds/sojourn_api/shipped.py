"""The three tiers that every installation starts with: gold, silver and bronze, as data.

The operator creates those that are missing and never changes one that exists: its figures belong to
the user from then on. Shares are thousandths of an A100-80GB per tenant.
"""

from typing import Final

from sojourn_api.names import BRONZE, GOLD, SILVER
from sojourn_api.objects import LatencyMetric, ObjectMeta, Tier


def _named(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace="", uid="", generation=0, created="")


SHIPPED_TIERS: Final = (
    Tier(
        _named(GOLD),
        priority=1000,
        guaranteed_share=2500,
        target_p95_ms=180,
        target_metric=LatencyMetric.TIME_TO_FIRST_TOKEN,
        pausable_by=(),
    ),
    Tier(
        _named(SILVER),
        priority=500,
        guaranteed_share=1000,
        target_p95_ms=350,
        target_metric=LatencyMetric.TIME_TO_FIRST_TOKEN,
        pausable_by=(GOLD,),
    ),
    Tier(
        _named(BRONZE),
        priority=0,
        guaranteed_share=0,
        target_p95_ms=0,
        target_metric=LatencyMetric.TIME_TO_FIRST_TOKEN,
        pausable_by=(GOLD, SILVER),
    ),
)
