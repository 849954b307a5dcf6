"""What is told about grants and pods: who uses what, what holds them to it, what their pages say.

Reads of the node at one moment, for the loop, metrics and the publisher; none is on Allocate's way.
"""

from sojourn_deviceplugin import conduct, enforcement, limits
from sojourn_deviceplugin.attribution import Use
from sojourn_deviceplugin.core import Node
from sojourn_deviceplugin.ledger import Grant


class Reports:
    """Any thread may ask."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.capped: frozenset[limits.Cap] = frozenset()
        """Whom the driver holds to their grants, by GPU and pod."""

    def uses(self) -> list[Use]:
        """What pods with grants use of their GPUs; empty where it is unknown."""
        facts, offers, grants = self._node.snapshot()
        attribution = self._node.attribution
        found = []
        for offer in offers:
            gpu = facts.gpu(offer.gpu.uuid)
            if gpu is not None:
                held = [grant for grant in grants if grant.ordinal == offer.gpu.ordinal]
                found += attribution.uses(held, gpu, slice_bytes=offer.gpu.slice_bytes)
        return found

    def uid(self, grant: Grant) -> str:
        """UID of a grant's pod, empty while it is not known."""
        return self._node.attribution.uid(grant)

    def caps(self) -> dict[limits.Cap, int]:
        """What each known pod was granted of each GPU, in bytes."""
        _, offers, grants = self._node.snapshot()
        gpus = {offer.gpu.ordinal: offer.gpu for offer in offers}
        found: dict[limits.Cap, int] = {}
        for grant in grants:
            gpu, pod = gpus[grant.ordinal], self.uid(grant)
            if pod:
                cap = (gpu.uuid, pod)
                found[cap] = found.get(cap, 0) + grant.slices * gpu.slice_bytes
        return found

    def enforced(self, grant: Grant, *, alive: bool) -> enforcement.Enforcement:
        """Who holds a grant to its memory."""
        cap = (self._node.offer(grant.ordinal).gpu.uuid, self.uid(grant))
        mps = self._node.mps and not enforcement.on_several(self._node.snapshot()[2], grant)
        return enforcement.of(grant, capped=cap in self.capped, mps=mps, alive=alive)

    def pages(self) -> dict[int, dict[str, conduct.Seen]]:
        """The pages of all grants, by GPU and slot."""
        found: dict[int, dict[str, conduct.Seen]] = {}
        for grant in self._node.snapshot()[2]:
            page = self._node.page(grant)
            if page is not None:
                seen = conduct.Seen(priority=grant.tier.priority, page=page)
                found.setdefault(grant.ordinal, {})[grant.slot] = seen
        return found
