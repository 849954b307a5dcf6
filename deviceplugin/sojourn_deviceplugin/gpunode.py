"""The GPUNode of this node, as a value: from what is offered and granted to the object's status.

Pure. When and how it is written is `node`'s; the field names are `sojourn_api.render`'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sojourn_api import gpus, names, render
from sojourn_api.objects import Condition, Gpu, GpuLoad, MigRoom, Stranded

from sojourn_deviceplugin import fragmentation
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts
from sojourn_deviceplugin.figures import Figures
from sojourn_deviceplugin.health import Verdict
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer
from sojourn_deviceplugin.room import free_slices, sizes_in_use

HALF: Final = 500
"""Decode fraction (thousandths) at which a GPU's share is published; models have their own."""
MOST: Final = 64
"""The CRD's bound of every list; a longer one would be refused with all the rest."""
NAMES: Final = 16
NAME: Final = 256
"""Bounds of its names of processes, and of each."""
NO_FIGURES: Final = Figures()


def gpu(
    offer: Offer,
    grants: Sequence[Grant],
    *,
    facts: GpuFacts | None = None,
    figures: Figures = NO_FIGURES,
) -> Gpu:
    """One GPU's entry. `facts` are NVML's of this GPU, None if it is not to be reached."""
    ordinal = offer.gpu.ordinal
    return Gpu(
        ordinal=offer.gpu.ordinal,
        uuid=offer.gpu.uuid,
        model=_short(offer.gpu.model),
        memory_bytes=offer.gpu.memory_bytes,
        slice_bytes=offer.gpu.slice_bytes,
        slices=offer.in_service,
        free_slices=free_slices(offer, grants),
        healthy=offer.verdict.healthy,
        reason=_why(offer.verdict),
        foreign_bytes=figures.foreign.get(ordinal, 0),
        foreign_by=tuple(name[:NAME] for name in offer.foreign_by[:NAMES]),
        mig=offer.mig,
        links=offer.links,
        share=gpus.capacity(offer.gpu.model, decode_fraction=HALF) or 0,
        load=figures.loads.get(ordinal, GpuLoad()),
        profiles=_rooms(facts),
        allocators=figures.allocators.get(ordinal, ())[:MOST],
    )


def _rooms(facts: GpuFacts | None) -> tuple[MigRoom, ...]:
    """By profile; those that fit no GPU of this kind are no news."""
    rooms = {
        profile.name: MigRoom(profile.name, remaining=profile.remaining, ideal=profile.ideal)
        for profile in (facts.profiles if facts else ())
        if profile.ideal
    }
    return tuple(rooms[name] for name in sorted(rooms))[:MOST]


def _why(verdict: Verdict) -> str:
    return "" if verdict.healthy else f"{verdict.reason}: {verdict.message}"[:1024]


def ready(facts: NodeFacts, offers: Sequence[Offer]) -> Condition:
    """The Ready condition, without its transition time."""
    sick = [offer for offer in offers if not offer.verdict.healthy]
    if facts.error:
        status, reason, message = "False", "NvmlUnavailable", facts.error
    elif not offers:
        text = (
            f"NVML lists no GPU here; see nvidia-smi, or take the label {names.LABEL_GPU_NODE} off"
        )
        status, reason, message = "False", "NoGpus", text
    elif len(sick) == len(offers):
        status, reason = "False", "AllUnhealthy"
        message = "; ".join(_ill(offer) for offer in sick)
    elif sick:
        status, reason = "True", "SomeUnhealthy"
        message = "; ".join(_ill(offer) for offer in sick)
    else:
        status, reason, message = "True", "Healthy", f"GPUs in service: {len(offers)}"
    return Condition(names.READY, status, reason, message)


def _ill(offer: Offer) -> str:
    return f"gpu-{offer.gpu.ordinal}: {_why(offer.verdict)}"


def status(
    facts: NodeFacts,
    offers: Sequence[Offer],
    grants: Sequence[Grant],
    *,
    condition: Condition,
    figures: Figures = NO_FIGURES,
) -> dict[str, Any]:
    """The whole status. What is unknown is left out."""
    entries = [
        gpu(offer, grants, facts=facts.gpu(offer.gpu.uuid), figures=figures) for offer in offers
    ]
    free = [entry.free_slices for entry in entries]
    models = {entry.model for entry in entries}
    found: dict[str, Any] = {
        "gpus": [render.gpu_to_raw(entry) for entry in entries],
        "slicesTotal": sum(entry.slices for entry in entries),
        "slicesFree": sum(free),
        "gpuCount": len(entries),
        "healthyGpus": sum(entry.healthy for entry in entries),
        "scatterPercent": fragmentation.scatter_percent(free),
        "migGpus": sum(entry.mig for entry in entries),
        "conditions": render.conditions_to_raw([condition]),
    }
    found |= _fragments(free, sizes_in_use(grants))
    busy = [entry.load.busy for entry in entries if entry.load.busy is not None]
    if busy:
        found["busyPercent"] = round(sum(busy) / len(busy))
    if facts.driver:
        found["driverVersion"] = facts.driver
    if models:
        found["gpuModel"] = models.pop() if len(models) == 1 else "mixed"
    return found


def _fragments(free: Sequence[int], sizes: Mapping[int, int]) -> dict[str, Any]:
    """What depends on the session sizes in use; with none of them nobody can know."""
    fragment = fragmentation.fragment_percent(free, sizes)
    if fragment is None:
        return {}
    stranded = [
        Stranded(size=size, slices=fragmentation.stranded(free, size=size))
        for size in sorted(sizes, reverse=True)
    ]
    return {
        "fragmentPercent": fragment,
        "strandedSlices": stranded[0].slices,
        "stranded": render.stranded_to_raw(stranded[:MOST]),
    }


def _short(model: str) -> str:
    known = gpus.find(model)
    return known.short if known else model.removeprefix("NVIDIA ")
