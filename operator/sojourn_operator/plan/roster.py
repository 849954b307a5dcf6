"""Who holds which GPU, by tier: so that a claim looks at the GPUs of the lowest tier first.

Kept up by differences like the ledger; numbers and keys only.
"""

from collections import Counter, defaultdict

from sojourn_operator.plan.state import Session
from sojourn_operator.plan.take import Take

Spot = tuple[str, int]
"""A node's name and the index of one of its GPUs."""


class Held(dict[str, tuple[int, int]]):
    """The slices and the parts of time that each session holds of one GPU; `slices` in all.

    `least` is the fewest bytes that any of them has to save, None until it is asked for.
    """

    __slots__ = ("least", "slices")

    def __init__(self) -> None:
        super().__init__()
        self.slices = 0
        self.least: int | None = None


class Roster:
    """`of[tier][spot]` is what the sessions of a tier hold there."""

    def __init__(self) -> None:
        self.of: defaultdict[str, dict[Spot, Held]] = defaultdict(dict)
        self._shares: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, session: Session, what: Take) -> None:
        """Count a session in."""
        spots = self.of[session.tier]
        self._shares[session.tier][session.request.share] += 1
        for index, slices, parts in what.gpus:
            spot = (what.node, index)
            held = spots.get(spot)
            if held is None:
                held = spots[spot] = Held()
            held[session.key] = (slices, parts)
            held.slices += slices
            held.least = None

    def remove(self, session: Session, what: Take) -> None:
        """Count a session out."""
        spots, shares = self.of[session.tier], self._shares[session.tier]
        shares[session.request.share] -= 1
        if not shares[session.request.share]:
            del shares[session.request.share]
        for index, slices, _ in what.gpus:
            spot = (what.node, index)
            held = spots[spot]
            del held[session.key]
            held.slices -= slices
            held.least = None
            if not held:
                del spots[spot]

    def save_changed(self, tier: str, what: Take) -> None:
        """A session has another number of bytes to save than before."""
        for index, _, _ in what.gpus:
            self.of[tier][what.node, index].least = None

    def largest_share(self, tier: str) -> int:
        """The largest share that a session of the tier asks for."""
        return max(self._shares[tier], default=0)
