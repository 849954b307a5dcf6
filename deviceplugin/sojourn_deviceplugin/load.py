"""How busy GPUs were over the last minute or so, from what NVML says at each look.

Pure: times are given. The figures of the moment are metrics; these are for a status that people and
placement read. What a GPU does not tell now is unknown now, whatever it told before.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sojourn_api.objects import GpuLoad

from sojourn_deviceplugin.facts import GpuFacts, NodeFacts

MEMORY_SECONDS: Final = 60.0
"""After so long, what was counts for a third. Sessions come and go in minutes; a request of some
seconds shall not look like a change of load."""


@dataclass(frozen=True, slots=True)
class Means:
    """Running means, in percent; None is unknown."""

    busy: float | None = None
    sm: float | None = None
    bandwidth: float | None = None

    def rounded(self) -> GpuLoad:
        """As the status has them."""
        return GpuLoad(
            busy=None if self.busy is None else round(self.busy),
            sm=None if self.sm is None else round(self.sm),
            bandwidth=None if self.bandwidth is None else round(self.bandwidth),
        )


def folded(before: Mapping[str, Means], facts: NodeFacts, *, seconds: float) -> dict[str, Means]:
    """The means by UUID, after one more look `seconds` after the last."""
    weight = 1 - math.exp(-max(0.0, seconds) / MEMORY_SECONDS)
    return {
        gpu.uuid: _folded(before.get(gpu.uuid, Means()), gpu, weight)
        for gpu in facts.gpus
        if not gpu.error
    }


def _folded(before: Means, gpu: GpuFacts, weight: float) -> Means:
    return Means(
        busy=_mean(before.busy, gpu.busy_percent, weight),
        sm=_mean(before.sm, gpu.sm_percent, weight),
        bandwidth=_mean(before.bandwidth, gpu.bandwidth_percent, weight),
    )


def _mean(before: float | None, now: int | None, weight: float) -> float | None:
    if now is None or before is None:
        return now
    return before + weight * (now - before)
