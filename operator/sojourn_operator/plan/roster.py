"""Who holds which GPU, by tier: so that a claim looks at the GPUs of the lowest tier first.

Kept up by differences like the ledger; holds numbers and keys, no sessions.
"""

from collections import defaultdict

from sojourn_operator.plan.take import Take

Spot = tuple[str, int]
"""A node's name and the index of one of its GPUs."""


class Roster:
    """`of[tier][spot][key]` is the slices and the parts of time that a session holds there."""

    def __init__(self) -> None:
        self.of: defaultdict[str, dict[Spot, dict[str, tuple[int, int]]]] = defaultdict(dict)

    def add(self, key: str, tier: str, what: Take) -> None:
        """Count a session in."""
        spots = self.of[tier]
        for index, slices, parts in what.gpus:
            spots.setdefault((what.node, index), {})[key] = (slices, parts)

    def remove(self, key: str, tier: str, what: Take) -> None:
        """Count a session out."""
        spots = self.of[tier]
        for index, _, _ in what.gpus:
            spot = (what.node, index)
            del spots[spot][key]
            if not spots[spot]:
                del spots[spot]
