"""What tenants may use, what is guaranteed to them, and what they have borrowed.

A guarantee is a share per tenant and tier. It is lent while unused and comes back by pausing
lower tiers, first those of tenants above their own guarantee. Whoever has no guarantee borrows
everything.
"""

from collections.abc import Iterable

from sojourn_operator.plan.books import Books
from sojourn_operator.plan.state import Node, Session, State


def guarantee(state: State, tenant: str, tier: str) -> int:
    """The share that a tenant has for a tier at any time; without a Tenant there is none."""
    owner, kind = state.tenants.get(tenant), state.tiers.get(tier)
    if owner is None or kind is None or tier not in owner.tiers:
        return 0
    return owner.guarantees.get(tier, kind.guaranteed_share)


def over(state: State, books: Books, session: Session) -> int:
    """How far the session's tenant is above its guarantee for that tier; negative within it."""
    used = books.by_tier[session.tenant, session.tier].share if session.tenant else 0
    limit = guarantee(state, session.tenant, session.tier)
    # Without any guarantee all is borrowed, also what asks for memory alone.
    return used - limit if limit else max(used, session.request.share, 1)


def most_over(state: State, books: Books, tier: str) -> int:
    """`over` of the tenant that is furthest above its guarantee for a tier, 0 without any."""
    return max(
        (
            used.share - guarantee(state, tenant, kind)
            for (tenant, kind), used in books.by_tier.items()
            if kind == tier
        ),
        default=0,
    )


def borrows(state: State, books: Books, session: Session) -> bool:
    """Whether its tenant could lose the session and still have its guarantee."""
    return over(state, books, session) >= max(session.request.share, 1)


def within_guarantee(state: State, books: Books, session: Session) -> bool:
    """Whether the tenant would stay within its guarantee with this claimant placed."""
    if session.tenant not in state.tenants:
        return False
    used = books.by_tier[session.tenant, session.tier].share
    return used + session.request.share <= guarantee(state, session.tenant, session.tier)


def forbidden(state: State, session: Session) -> str:
    """Why the tenant may not use the tier at all, empty if it may."""
    owner = state.tenants.get(session.tenant)
    if owner is None or session.tier in owner.tiers:
        return ""
    allowed = ", ".join(sorted(owner.tiers)) or "none"
    return f"tenant {owner.name} may not use tier {session.tier}; it may use: {allowed}"


def over_quota(state: State, books: Books, session: Session) -> str:
    """Which quota the claimant would exceed, in numbers; empty if none."""
    owner = state.tenants.get(session.tenant)
    if owner is None:
        return ""
    used, request = books.by_tenant[owner.name], session.request
    for what, limit, has, more in (
        ("share", owner.quota_share, used.share, request.share),
        ("slices", owner.quota_slices, used.slices, request.slices),
        ("sessions", owner.quota_sessions, used.sessions, 1),
    ):
        if limit is not None and has + more > limit:
            return f"tenant {owner.name} uses {has} of its quota of {limit} {what}; needs {more}"
    return ""


def turn_order(state: State, books: Books, session: Session) -> tuple[float, float, str]:
    """Among claimants of one tier: the tenant with least use per weight first, then the oldest."""
    owner = state.tenants.get(session.tenant)
    if owner is None:
        return (0.0, session.created, session.key)
    use = books.by_tier[session.tenant, session.tier].share / max(owner.weight, 1)
    return (use, session.created, session.key)


def broken_promises(state: State) -> dict[str, str]:
    """Tenants whose guarantees the cluster cannot honour, in numbers.

    Guarantees are counted in the order of tiers, then of tenants' names, until the GPUs in service
    are promised away.
    """
    capacity = capacity_of(state.nodes.values())
    promises = sorted(
        (-state.tiers[tier].priority, name, tier, amount)
        for name, owner in state.tenants.items()
        for tier in owner.tiers
        if tier in state.tiers and (amount := guarantee(state, name, tier))
    )
    found: dict[str, str] = {}
    promised = 0
    for _, name, tier, amount in promises:
        promised += amount
        if promised > capacity and name not in found:
            found[name] = (
                f"its guarantee of {amount} for {tier} is not covered: "
                f"{promised} are promised up to here, the GPUs in service have {capacity} "
                "for work that is half decode"
            )
    return found


def capacity_of(nodes: Iterable[Node]) -> int:
    """Thousandths of an A100 in service, at the default decode fraction."""
    return sum(
        gpu.speed.capacity(500)
        for node in nodes
        if node.ready and node.heard and node.schedulable and not node.draining
        for gpu in node.gpus
        if gpu.healthy and gpu.speed is not None
    )
