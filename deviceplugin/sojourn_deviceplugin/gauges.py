"""Prometheus metrics that are read when somebody looks: GPUs, slices, fragments, grants.

Names carry units; what is unknown has no sample, never a zero.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sojourn_api.arbiter import PageState

from sojourn_deviceplugin import allocators, fragmentation
from sojourn_deviceplugin.attribution import Use
from sojourn_deviceplugin.enforcement import Enforcement
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer, Snapshot
from sojourn_deviceplugin.room import free_slices, sizes_in_use

GRANT_GAUGES = {
    "slices": "Slices granted.",
    "priority": "Priority that the grant may claim.",
    "share": "Compute share, in thousandths of an A100.",
    "flag_raised": "1 while the pod has its flag up.",
    "alive": "1 while a process owns the page.",
    "waiting_seconds": "How long the pod has had work and made no step.",
    "memory_used_bytes": "What the pod's processes use, by NVML (known with hostProc only).",
    "allocator_reserved_bytes": "In-process: what the runtime's allocator holds.",
    "allocator_used_bytes": "In-process: of it, in use.",
    "allocator_inactive_split_bytes": "In-process: of it, idle parts of blocks in use.",
    "allocator_largest_free_bytes": "In-process: the largest idle block.",
}


class Enforced(Protocol):
    """`reports.Reports.enforced`."""

    def __call__(self, grant: Grant, *, alive: bool) -> Enforcement: ...


class NodeGauges(Collector):
    """The node's GPUs, slices and fragments at the moment of the scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        return ()  # spares prometheus_client a collection at registration

    def collect(self) -> Iterator[Metric]:
        facts, offers, grants = self._snapshot()
        yield from _gpus(facts, offers, grants)
        yield from _fragments(facts, offers, grants)


class GrantGauges(Collector):
    """What each grant's page says: waits, steps, and the allocator's inside while it is fresh."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        page: Callable[[Grant], PageState | None],
        *,
        enforced: Enforced,
        uses: Callable[[], Iterable[Use]],
        waited: Callable[[Grant], float],
    ) -> None:
        self._snapshot = snapshot
        self._page = page
        self._enforced = enforced
        self._uses = uses
        self._waited = waited

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        labels = ["gpu", "namespace", "pod"]
        families = {
            name: GaugeMetricFamily(f"sojourn_grant_{name}", text, labels=labels)
            for name, text in GRANT_GAUGES.items()
        }
        waited = CounterMetricFamily(
            "sojourn_arbiter_yielded_seconds", "Time waited for others.", labels=labels
        )
        steps = CounterMetricFamily("sojourn_arbiter_steps", "Steps begun.", labels=labels)
        text = "Who holds the pod to its memory: driver, mps, its own runtime, or none."
        enforced = GaugeMetricFamily(
            "sojourn_grant_enforcement", text, labels=[*labels, "enforcement"]
        )
        _, offers, grants = self._snapshot()
        memory = {offer.gpu.ordinal: offer.gpu.memory_bytes for offer in offers}
        for grant in grants:
            page = self._page(grant)
            if grant.holder is None or page is None:
                continue
            key = (str(grant.ordinal), grant.holder.namespace, grant.holder.pod)
            waited.add_metric(key, page.yielded_ns / 1e9)
            steps.add_metric(key, page.steps)
            for name, value in _grant_values(grant, page).items():
                families[name].add_metric(key, value)
            for name, value in _allocator_values(page, limit=memory[grant.ordinal]).items():
                families[name].add_metric(key, value)
            families["waiting_seconds"].add_metric(key, self._waited(grant))
            who = self._enforced(grant, alive=page.locked)
            enforced.add_metric((*key, who.value), 1)
        for use in self._uses():
            if use.grant.holder is not None:
                holder = use.grant.holder
                key = (str(use.grant.ordinal), holder.namespace, holder.pod)
                families["memory_used_bytes"].add_metric(key, use.bytes)
        yield from (waited, steps, enforced, *families.values())


def _grant_values(grant: Grant, page: PageState) -> dict[str, float]:
    return {
        "slices": grant.slices,
        "priority": grant.tier.priority,
        "share": grant.tier.share,
        "flag_raised": int(page.raised),
        "alive": int(page.locked),
    }


def _allocator_values(page: PageState, *, limit: int) -> dict[str, float]:
    inside = allocators.told(page, limit=limit, now_ns=time.monotonic_ns())
    if inside is None:
        return {}
    values = {
        "allocator_reserved_bytes": inside.reserved,
        "allocator_used_bytes": inside.used,
        "allocator_inactive_split_bytes": inside.inactive_split,
        "allocator_largest_free_bytes": inside.largest_free,
    }
    return {name: value for name, value in values.items() if value is not None}


def _gpus(
    facts: NodeFacts, offers: tuple[Offer, ...], grants: tuple[Grant, ...]
) -> Iterator[Metric]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"sojourn_gpu_{name}", text, labels=["gpu", "uuid"])

    total = gauge("slices", "Slices of the GPU, in service or not.")
    service = gauge("slices_in_service", "Slices that the kubelet may count on.")
    free = gauge("slices_free", "Slices in service that nobody holds.")
    healthy = gauge("healthy", "1 if the GPU can be trusted.")
    foreign = gauge("foreign_bytes", "Memory in use above all grants together (a lower bound).")
    used = gauge("memory_used_bytes", "Memory in use, by NVML.")
    busy = gauge("busy_percent", "Time with a kernel running, by NVML (not how full the GPU was).")
    limits = gauge("memory_limits_supported", "1 if the driver could limit memory per cgroup.")
    ecc = gauge("ecc_uncorrected_errors", "Since the driver was loaded; absent without ECC.")
    memory = gauge("memory_busy_percent", "Time with memory in use, by NVML.")
    sm = gauge("sm_percent", "SMs at work, of all, by GPM (Hopper and later).")
    band = gauge("bandwidth_percent", "Memory bandwidth used, of all there is, by GPM.")
    for offer in offers:
        key = (str(offer.gpu.ordinal), offer.gpu.uuid)
        total.add_metric(key, offer.gpu.slices)
        service.add_metric(key, offer.in_service)
        free.add_metric(key, free_slices(offer, grants))
        healthy.add_metric(key, int(offer.verdict.healthy))
        gpu = facts.gpu(offer.gpu.uuid)
        if gpu is None or gpu.error:
            continue
        foreign.add_metric(key, offer.foreign_bytes)
        used.add_metric(key, gpu.used_bytes)
        limits.add_metric(key, int(gpu.memory_limits))
        for family, value in (
            (busy, gpu.busy_percent),
            (memory, gpu.memory_busy_percent),
            (sm, gpu.sm_percent),
            (band, gpu.bandwidth_percent),
            (ecc, gpu.ecc_errors),
        ):
            if value is not None:
                family.add_metric(key, value)
    yield from (total, service, free, healthy, foreign, used, busy, memory, sm, band, limits, ecc)


def _fragments(
    facts: NodeFacts, offers: tuple[Offer, ...], grants: tuple[Grant, ...]
) -> Iterator[Metric]:
    free = [free_slices(offer, grants) for offer in offers]
    sizes = sizes_in_use(grants)
    yield GaugeMetricFamily(
        "sojourn_node_scatter_ratio",
        "Free slices outside the emptiest GPU, of all free slices.",
        value=fragmentation.scatter_percent(free) / 100,
    )
    stranded = GaugeMetricFamily(
        "sojourn_node_stranded_slices",
        "Free slices on GPUs that cannot take a session of this size (sizes in use here).",
        labels=["size"],
    )
    for size in sorted(sizes):
        stranded.add_metric((str(size),), fragmentation.stranded(free, size=size))
    yield stranded
    expected = fragmentation.expected_fragment(free, sizes)
    if expected is not None:
        text = "Free slices that the next session is expected not to be able to use."
        yield GaugeMetricFamily("sojourn_node_expected_fragment_slices", text, value=expected)
    labels = ["uuid", "profile"]
    remaining = GaugeMetricFamily(
        "sojourn_mig_remaining", "MIG instances of a profile that still fit.", labels=labels
    )
    ideal = GaugeMetricFamily(
        "sojourn_mig_ideal", "MIG instances of a profile that fit an empty GPU.", labels=labels
    )
    for gpu in facts.gpus:
        for profile in gpu.profiles:
            remaining.add_metric((gpu.uuid, profile.name), profile.remaining)
            ideal.add_metric((gpu.uuid, profile.name), profile.ideal)
    yield from (remaining, ideal)
