"""What each tenant uses, borrows and could take back, as its status shows it. Pure.

In thousandths of an A100. Guarantees are per tier, as in `plan.tenants`: what one tier leaves
unused is no room of another.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from sojourn_operator import plan
from sojourn_operator.plan.tenants import guarantee

UP: Final = frozenset({plan.Phase.STARTING, plan.Phase.RUNNING, plan.Phase.PAUSING})


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one tenant. `reclaimable`: the part of its guarantees that others use now."""

    used: int
    borrowed: int
    reclaimable: int
    sessions: int

    def to_raw(self) -> dict[str, int]:
        return {
            "shareUsed": self.used,
            "shareBorrowed": self.borrowed,
            "shareReclaimable": self.reclaimable,
            "sessions": self.sessions,
        }


def figures(state: plan.State) -> dict[str, Figures]:
    """By tenant; sessions of no tenant borrow all that they use."""
    used: Counter[tuple[str, str]] = Counter()
    count: Counter[str] = Counter()
    for session in state.sessions.values():
        if session.phase in UP and session.place is not None:
            used[session.tenant, session.tier] += sum(use.share for use in session.place.gpus)
            count[session.tenant] += 1
    borrowed: Counter[str] = Counter()
    for (tenant, tier), share in used.items():
        borrowed[tenant] += max(share - guarantee(state, tenant, tier), 0)
    everything = borrowed.total()
    return {
        name: Figures(
            used=sum(used[name, tier] for tier in state.tiers),
            borrowed=borrowed[name],
            reclaimable=min(_unused(state, name, used), everything - borrowed[name]),
            sessions=count[name],
        )
        for name in state.tenants
    }


def _unused(state: plan.State, tenant: str, used: Counter[tuple[str, str]]) -> int:
    return sum(max(guarantee(state, tenant, tier) - used[tenant, tier], 0) for tier in state.tiers)
