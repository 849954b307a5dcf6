"""The GPUNode of this node, as a value: from what is offered and granted to the object's status.

Pure. When and how it is written is `node`'s; the field names are `sojourn_api.render`'s.
"""

from collections.abc import Sequence
from typing import Any, Final

from sojourn_api import gpus, names, render
from sojourn_api.objects import Condition, Gpu

from sojourn_deviceplugin import fragmentation
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.health import Verdict
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer
from sojourn_deviceplugin.room import free_slices, sizes_in_use

HALF: Final = 500
"""Decode fraction (thousandths) at which a GPU's share is published; models have their own."""
FOREIGN_STEP: Final = 256 * 1024**2
"""Foreign memory is published in steps of this: what a browser of status can act on."""


def gpu(offer: Offer, grants: Sequence[Grant]) -> Gpu:
    """One GPU's entry."""
    step = FOREIGN_STEP
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
        foreign_bytes=-(-offer.foreign_bytes // step) * step,
        mig=offer.mig,
        links=offer.links,
        share=gpus.capacity(offer.gpu.model, decode_fraction=HALF) or 0,
    )


def _why(verdict: Verdict) -> str:
    return "" if verdict.healthy else f"{verdict.reason}: {verdict.message}"[:1024]


def ready(facts: NodeFacts, offers: Sequence[Offer]) -> Condition:
    """The Ready condition, without its transition time."""
    sick = [offer for offer in offers if not offer.verdict.healthy]
    if facts.error:
        status, reason, message = "False", "NvmlUnavailable", facts.error
    elif not offers:
        status, reason, message = "False", "NoGpus", "NVML lists no GPU on this node"
    elif len(sick) == len(offers):
        status, reason = "False", "AllUnhealthy"
        message = "; ".join(_ill(offer) for offer in sick)
    elif sick:
        status, reason = "True", "SomeUnhealthy"
        message = "; ".join(_ill(offer) for offer in sick)
    else:
        status, reason, message = "True", "Healthy", f"{len(offers)} GPUs in service"
    return Condition(names.READY, status, reason, message)


def _ill(offer: Offer) -> str:
    return f"gpu-{offer.gpu.ordinal}: {_why(offer.verdict)}"


def status(
    facts: NodeFacts, offers: Sequence[Offer], grants: Sequence[Grant], *, condition: Condition
) -> dict[str, Any]:
    """The whole status. What is unknown is left out."""
    entries = [gpu(offer, grants) for offer in offers]
    free = [entry.free_slices for entry in entries]
    models = {entry.model for entry in entries}
    found: dict[str, Any] = {
        "gpus": [render.gpu_to_raw(entry) for entry in entries],
        "slicesTotal": sum(entry.slices for entry in entries),
        "slicesFree": sum(free),
        "gpuCount": len(entries),
        "healthyGpus": sum(entry.healthy for entry in entries),
        "scatterPercent": fragmentation.scatter_percent(free),
        "conditions": render.conditions_to_raw([condition]),
    }
    if facts.driver:
        found["driverVersion"] = facts.driver
    if models:
        found["gpuModel"] = models.pop() if len(models) == 1 else "mixed"
    fragment = fragmentation.fragment_percent(free, sizes_in_use(grants))
    if fragment is not None:
        found["fragmentPercent"] = fragment
    return found


def _short(model: str) -> str:
    known = gpus.find(model)
    return known.short if known else model.removeprefix("NVIDIA ")
