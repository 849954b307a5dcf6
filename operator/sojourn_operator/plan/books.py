"""Who uses how much: shares, slices and sessions per tenant, as the ledger of a plan goes on.

Counts what holds devices and what the plan has booked. What is allowed is `tenants`' question.
"""

from collections import defaultdict
from dataclasses import dataclass

from sojourn_operator.plan.state import Session


@dataclass(slots=True)
class Usage:
    """Sums over sessions; shares in thousandths of an A100."""

    share: int = 0
    slices: int = 0
    sessions: int = 0

    def add(self, session: Session, sign: int) -> None:
        """Count a session in or out."""
        self.share += sign * session.request.share
        self.slices += sign * session.request.slices
        self.sessions += sign


class Books:
    """Usage by tenant and by tenant and tier. A session without a tenant counts for nobody."""

    def __init__(self) -> None:
        self.by_tenant: defaultdict[str, Usage] = defaultdict(Usage)
        self.by_tier: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)

    def add(self, session: Session, sign: int = 1) -> None:
        """Count a session in, or out with -1."""
        if session.tenant:
            self.by_tenant[session.tenant].add(session, sign)
            self.by_tier[session.tenant, session.tier].add(session, sign)
