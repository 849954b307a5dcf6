"""Which memory of a GPU belongs to whom: exactly by pod, or as a bound where processes are hidden.

Pure: what is known of pods and processes is told from outside. Sums are `processes`'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sojourn_deviceplugin import processes, slices
from sojourn_deviceplugin.facts import GpuFacts
from sojourn_deviceplugin.ledger import Grant


@dataclass(slots=True)
class Attribution:
    """`pids`: pod UIDs by host process id, None where the host's processes cannot be seen;
    `uids`: pod UIDs by namespace and name.
    """

    pids: Mapping[int, str] | None = None
    uids: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def _uid(self, grant: Grant) -> str:
        holder = grant.holder
        return self.uids.get((holder.namespace, holder.pod), "") if holder else ""

    def _uses(self, grants: Sequence[Grant], facts: GpuFacts) -> processes.Uses | None:
        """None where it cannot be told for sure: a pod not known yet would be a stranger."""
        holders = [self._uid(grant) for grant in grants]
        if self.pids is None or not all(holders):
            return None
        return processes.uses(facts.processes, pods=self.pids, holders=holders)

    def foreign(
        self, grants: Sequence[Grant], facts: GpuFacts, *, slice_bytes: int
    ) -> slices.Foreign:
        """Memory of others, or at least what exceeds all grants together."""
        uses = self._uses(grants, facts)
        if uses is not None:
            return slices.foreign(used=uses.foreign, granted=0, slice_bytes=slice_bytes)
        granted = sum(grant.slices for grant in grants) * slice_bytes
        return slices.foreign(used=facts.used_bytes, granted=granted, slice_bytes=slice_bytes)

    def over(
        self, grants: Sequence[Grant], facts: GpuFacts, *, slice_bytes: int
    ) -> list[tuple[Grant, int]]:
        """Grants whose pods use more than granted, and how much; empty where unknown."""
        uses = self._uses(grants, facts)
        if uses is None:
            return []
        found = [(grant, uses.by_pod.get(self._uid(grant), 0)) for grant in grants]
        return [(grant, used) for grant, used in found if used > grant.slices * slice_bytes]
