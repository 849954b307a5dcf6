"""Which memory of a GPU belongs to whom: exactly by pod, or as a bound where processes are hidden.

Pure: what is known of pods and processes is told from outside. Sums are `processes`'.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sojourn_deviceplugin import processes, slices
from sojourn_deviceplugin.facts import GpuFacts, ProcessUse
from sojourn_deviceplugin.ledger import Grant


@dataclass(frozen=True, slots=True)
class Use:
    """One pod's part of one GPU: bytes granted (over all its containers), and its processes."""

    grant: Grant
    uid: str
    granted: int
    processes: tuple[ProcessUse, ...]

    @property
    def bytes(self) -> int:
        return sum(process.bytes for process in self.processes)

    @property
    def sm_percent(self) -> int:
        return sum(process.sm_percent for process in self.processes)


@dataclass(frozen=True, slots=True)
class Attribution:
    """`pids`: pod UIDs by host process id, None where the host's processes cannot be seen;
    `uids`: pod UIDs by namespace and name.
    """

    pids: Mapping[int, str] | None = None
    uids: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def uid(self, grant: Grant) -> str:
        """UID of the grant's pod, empty while it is not known."""
        holder = grant.holder
        return self.uids.get((holder.namespace, holder.pod), "") if holder else ""

    def _uses(self, grants: Sequence[Grant], facts: GpuFacts) -> processes.Uses | None:
        """None where it cannot be told for sure: a pod not known yet would be a stranger."""
        holders = [self.uid(grant) for grant in grants]
        if self.pids is None or not all(holders):
            return None
        return processes.uses(facts.processes, pods=self.pids, holders=holders)

    def foreign(
        self, grants: Sequence[Grant], facts: GpuFacts, *, slice_bytes: int
    ) -> slices.Foreign:
        """Memory of others, or at least what exceeds all grants together."""
        uses = self._uses(grants, facts)
        if uses is not None:
            found = slices.foreign(used=uses.foreign, granted=0, slice_bytes=slice_bytes)
            who = {process.name for process in uses.strangers if process.name}
            return replace(found, names=tuple(sorted(who)))
        granted = sum(grant.slices for grant in grants) * slice_bytes
        return slices.foreign(used=facts.used_bytes, granted=granted, slice_bytes=slice_bytes)

    def uses(self, grants: Iterable[Grant], facts: GpuFacts, *, slice_bytes: int) -> list[Use]:
        """What each known pod with a grant uses of the GPU; nothing where processes are hidden."""
        if self.pids is None:
            return []
        granted: dict[str, list[Grant]] = {}
        for grant in grants:
            granted.setdefault(self.uid(grant), []).append(grant)
        found = processes.of_pods(facts.processes, pods=self.pids)
        return [
            Use(
                grant=held[0],
                uid=uid,
                granted=sum(grant.slices for grant in held) * slice_bytes,
                processes=tuple(found.get(uid, ())),
            )
            for uid, held in granted.items()
            if uid
        ]
