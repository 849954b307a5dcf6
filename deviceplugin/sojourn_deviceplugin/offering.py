"""From what NVML says, what is granted and what has happened to a GPU: how it is offered now.

Apart from a look at which device files exist, no I/O. What an offer looks like to the kubelet is
`offers`'; the judgement of health is `health`'s.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sojourn_deviceplugin import health, registry, slices
from sojourn_deviceplugin.attribution import Attribution
from sojourn_deviceplugin.config import Config, DeviceNodes
from sojourn_deviceplugin.facts import GpuFacts
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer

DEV: Final = Path("/dev")
SHARED_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
UNKNOWN: Final = health.Verdict(healthy=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """A GPU whose verdict changed, and how."""

    ordinal: int
    uuid: str
    before: health.Verdict
    after: health.Verdict


def turned(gpu: registry.Known, before: Offer | None, after: health.Verdict) -> Turn | None:
    """What has changed, None if nothing did."""
    if before is not None and before.verdict == after:
        return None
    was = before.verdict if before else UNKNOWN
    return Turn(ordinal=gpu.ordinal, uuid=gpu.uuid, before=was, after=after)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else there is on the node when a GPU's offer is made."""

    known: Mapping[str, registry.Known]
    attribution: Attribution
    config: Config

    def offer(
        self,
        gpu: registry.Known,
        facts: GpuFacts | None,
        verdict: health.Verdict,
        *,
        before: Offer | None,
        grants: Sequence[Grant],
    ) -> Offer:
        """The offer; `grants` are this GPU's. What cannot be told now stays as it was."""
        if facts is None or facts.error:
            return replace(before, gpu=gpu, verdict=verdict) if before else Offer(gpu, verdict)
        foreign = self.attribution.foreign(grants, facts, slice_bytes=gpu.slice_bytes)
        peers = (self.known[uuid].ordinal for uuid in facts.links if uuid in self.known)
        return Offer(
            gpu=gpu,
            verdict=verdict,
            numa=facts.numa,
            out=slices.out_of_service(
                gpu.ids,
                held=frozenset().union(*(grant.devices for grant in grants)),
                kept=before.out if before else (),
                # In MIG mode slices mean nothing; held ones stay until they are given back.
                wanted=gpu.slices if facts.mig else foreign.slices,
            ),
            foreign_bytes=foreign.bytes,
            foreign_by=foreign.names,
            links=tuple(sorted(peers)),
            mig=facts.mig,
            nodes=device_files(facts, self.config),
        )


def device_files(facts: GpuFacts, config: Config, *, dev: Path = DEV) -> tuple[str, ...]:
    """Device files of a GPU's containers, as far as they are there."""
    if config.device_nodes is DeviceNodes.NONE:
        return ()
    wanted = (dev / name for name in (f"nvidia{facts.minor}", *SHARED_NODES))
    return tuple(str(node) for node in wanted if node.exists())


def lasting(known: Iterable[registry.Known]) -> list[registry.Known]:
    """What is worth writing down: not that one more probe was good."""
    return [replace(gpu, health=replace(gpu.health, good=0)) for gpu in known]
