"""Who holds which slices: grants as Allocate made them, and as the kubelet's own list confirms.

Pure: no files, no gRPC, no clock (times are given). The kubelet's word is the truth: what it
allocates again was free, and what its list lacks is over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sojourn_api.arbiter import Tier

SETTLE_NS: Final = 10_000_000_000
"""How long an allocation may be absent from the kubelet's list before it counts as over: the
kubelet lists a pod only once all its containers are allocated. A guess on the safe side."""


UNKNOWN: Final = Tier()
"""What a grant has until its pod is known: the lowest priority."""

RESTORED_NS: Final = 2_000_000_000
"""The same for grants of before a restart of the plugin."""


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A container, as the pod-resources API names it."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Slices of one GPU in one container's hands.

    `slot` names its arbiter page; it is empty for a grant that was made before this node's state
    was lost, which is counted but cannot be promoted.
    """

    ordinal: int
    devices: frozenset[str]
    slot: str
    made_ns: int
    holder: Holder | None = None
    tier: Tier = UNKNOWN
    mps: bool = False
    """Its container was told to be a client of the MPS daemon."""

    @property
    def slices(self) -> int:
        return len(self.devices)

    @property
    def key(self) -> tuple[int, str]:
        """Tells it from all others that have a page."""
        return self.ordinal, self.slot


@dataclass(frozen=True, slots=True)
class Changes:
    """What a look at the kubelet's list changed."""

    over: tuple[Grant, ...] = ()
    named: tuple[Grant, ...] = ()
    adopted: tuple[Grant, ...] = ()


Held = Mapping[tuple[Holder, int], frozenset[str]]
"""The kubelet's list: which devices of which GPU (ordinal) a container has."""


Keys = frozenset[tuple[int, str]]
"""Some grants, by GPU and slot."""


def _rename(grant: Grant, holder: Holder) -> Grant:
    """A holder's first name keeps the tier (of before a restart); another holder starts anew."""
    tier = grant.tier if grant.holder is None else UNKNOWN
    return replace(grant, holder=holder, tier=tier)


@dataclass(slots=True)
class Ledger:
    """All grants of the node. Not safe for threads: the caller holds a lock."""

    grants: list[Grant] = field(default_factory=list)

    def allocate(
        self, *, ordinal: int, devices: frozenset[str], slot: str, now_ns: int, mps: bool = False
    ) -> tuple[Grant, tuple[Grant, ...]]:
        """Record what the kubelet gave; returns the grant and those that must be over for it."""
        over = tuple(g for g in self.grants if g.ordinal == ordinal and g.devices & devices)
        grant = Grant(ordinal=ordinal, devices=devices, slot=slot, made_ns=now_ns, mps=mps)
        self.grants = [g for g in self.grants if g not in over]
        self.grants.append(grant)
        return grant, over

    def restore(self, grants: Iterable[Grant], *, now_ns: int) -> None:
        """Take back grants of before a restart; they are over unless the kubelet names them soon.

        The last allocation was answered before the plugin ended, so that the kubelet lists it.
        """
        made_ns = now_ns - SETTLE_NS + RESTORED_NS
        self.grants.extend(replace(grant, made_ns=made_ns) for grant in grants)

    def reconcile(self, held: Held, *, listed_ns: int, spared: Keys = frozenset()) -> Changes:
        """Take over the kubelet's list: name grants, drop those that are over, adopt unknown ones.

        `listed_ns` is when the list was asked for: it knows nothing of grants made after that, and
        what it says of their devices is out of date. `spared` are not over although they are not
        listed: a kubelet that has just started lists no pod yet, and one that lost its checkpoint
        never lists those of before.
        """
        newer = [grant for grant in self.grants if grant.made_ns >= listed_ns]
        listed = {
            (ordinal, devices): holder
            for (holder, ordinal), devices in held.items()
            if not any(grant.ordinal == ordinal and grant.devices & devices for grant in newer)
        }
        kept = list(newer)
        over: list[Grant] = []
        named: list[Grant] = []
        for grant in self.grants:
            if grant in newer:
                continue
            holder = listed.pop((grant.ordinal, grant.devices), None)
            if holder is None:
                settled = grant.holder is not None or listed_ns - grant.made_ns > SETTLE_NS
                ended = settled and grant.key not in spared
                (over if ended else kept).append(grant)
            elif holder == grant.holder:
                kept.append(grant)
            else:
                named.append(_rename(grant, holder))
                kept.append(named[-1])
        adopted = [
            Grant(ordinal=ordinal, devices=devices, slot="", made_ns=listed_ns, holder=holder)
            for (ordinal, devices), holder in sorted(listed.items(), key=lambda item: item[1])
        ]
        for new in adopted:
            clash = [g for g in kept if g.ordinal == new.ordinal and g.devices & new.devices]
            over.extend(clash)
            kept = [grant for grant in kept if grant not in clash]
            kept.append(new)
        self.grants = kept
        return Changes(over=tuple(over), named=tuple(named), adopted=tuple(adopted))

    def promote(self, grant: Grant, tier: Tier) -> Grant:
        """Give a grant its pod's tier; the grant as it is now."""
        promoted = replace(grant, tier=tier)
        self.grants[self.grants.index(grant)] = promoted
        return promoted

    def of(self, ordinal: int) -> Iterable[Grant]:
        """The grants of one GPU."""
        return (grant for grant in self.grants if grant.ordinal == ordinal)

    def held(self, ordinal: int) -> frozenset[str]:
        """All devices of a GPU that somebody holds."""
        return frozenset().union(*(grant.devices for grant in self.of(ordinal)))
