"""`--check`: what would be offered with these settings on this node, and why what is not."""

from collections.abc import Iterator

from sojourn_api import gpus, names

from sojourn_deviceplugin import health, mig, registry, slices
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts
from sojourn_deviceplugin.offers import refusal


def report(
    facts: NodeFacts, known: dict[str, registry.Known], config: Config, *, boot: str
) -> Iterator[str]:
    """Lines for a person."""
    if facts.error:
        yield f"nothing: {facts.error}"
    elif not facts.gpus and not known:
        yield "nothing: NVML lists no GPU"
    if facts.driver:
        yield f"driver {facts.driver}"
    now = health.Situation(node=facts, boot=boot, probes=1)
    everything = registry.enroll(known, facts.gpus, config)
    healthy = set()
    for entry in sorted(everything.values(), key=lambda entry: entry.ordinal):
        found = facts.gpu(entry.uuid)
        if found is not None and not found.error:
            entry = registry.replan(entry, found, config)  # noqa: PLW2901
        verdict = refusal(entry) or health.judge(entry.health, found, now)[1]
        healthy |= {entry.uuid} if verdict.healthy else set()
        yield _line(entry, found, verdict)
    for resource, pool in sorted(mig.pools(facts.gpus, healthy=healthy, before={}).items()):
        good = sum(instance.healthy for instance in pool.instances)
        uuids = ", ".join(instance.uuid for instance in pool.instances)
        yield f"{resource}: {len(pool.instances)} instances, {good} on healthy GPUs ({uuids})"


def _line(entry: registry.Known, found: GpuFacts | None, verdict: health.Verdict) -> str:
    what = f"{names.gpu_resource(entry.ordinal)}: {entry.slices} x {entry.slice_bytes} bytes"
    whose = f"{entry.model} {entry.uuid}"
    size = slices.message_bytes(entry.ids, numa=True)
    notes = [f"list of {size} bytes"]
    if gpus.find(entry.model) is None:
        notes.append("model unknown to the speed table: no compute share")
    if found is not None and found.mig:
        notes.append("MIG mode: no slices")
    elif not entry.slices:
        notes.append("not one slice fits beside the reserve: lower sliceBytes or reservedBytes")
    if not verdict.healthy:
        return f"{what} of {whose}: unhealthy, {verdict.reason}: {verdict.message}"
    return f"{what} of {whose} ({', '.join(notes)})"
