"""Prometheus metrics of the plugin: counters that threads bump, and gauges read at the scrape.

Names carry units; what is unknown has no sample, never a zero.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sojourn_api.arbiter import PageState

from sojourn_deviceplugin import fragmentation
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer
from sojourn_deviceplugin.room import free_slices, sizes_in_use

Snapshot = tuple[NodeFacts, tuple[Offer, ...], tuple[Grant, ...]]

ALLOCATOR_FRESH_NS = 60_000_000_000
"""Figures older than this are unknown."""

GRANT_GAUGES = {
    "slices": "Slices granted.",
    "priority": "Priority that the grant may claim.",
    "share": "Compute share, in thousandths of an A100.",
    "flag_raised": "1 while the pod has its flag up.",
    "alive": "1 while a process owns the page.",
    "allocator_reserved_bytes": "In-process: what the runtime's allocator holds.",
    "allocator_used_bytes": "In-process: of it, in use.",
    "allocator_inactive_split_bytes": "In-process: of it, idle parts of blocks in use.",
    "allocator_largest_free_bytes": "In-process: the largest idle block.",
}

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 5)


class Metrics:
    """What threads count. One per process, or one per test."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._allocations = Counter(
            "sojourn_deviceplugin_allocations",
            "Allocate calls by outcome.",
            ["resource", "outcome"],
            registry=self.registry,
        )
        self._latency = Histogram(
            "sojourn_deviceplugin_allocate_seconds",
            "Time inside Allocate, without the transport.",
            registry=self.registry,
            buckets=BUCKETS,
        )
        self._registrations = Counter(
            "sojourn_deviceplugin_registrations",
            "Registrations with the kubelet.",
            ["resource"],
            registry=self.registry,
        )
        self._turns = Counter(
            "sojourn_deviceplugin_health_changes",
            "Changes of a GPU's health, by the new reason.",
            ["gpu", "reason"],
            registry=self.registry,
        )
        self._xids = Counter(
            "sojourn_deviceplugin_xids", "XID events.", ["uuid", "xid"], registry=self.registry
        )
        self._offences = Counter(
            "sojourn_arbiter_offending_steps",
            "Steps begun under a higher tier's flag.",
            ["gpu"],
            registry=self.registry,
        )
        self._over = Gauge(
            "sojourn_grants_over_memory",
            "Grants whose pods use more memory than granted (known with hostProc only).",
            registry=self.registry,
        )
        self._errors = Counter(
            "sojourn_deviceplugin_errors",
            "Failed calls to the kubelet or the API server.",
            ["to"],
            registry=self.registry,
        )

    def allocated(self, resource: str, outcome: str, seconds: float) -> None:
        self._allocations.labels(resource, outcome).inc()
        self._latency.observe(seconds)

    def registered(self, resource: str) -> None:
        self._registrations.labels(resource).inc()

    def turned(self, ordinal: int, reason: str) -> None:
        self._turns.labels(str(ordinal), reason or "Healthy").inc()

    def xid(self, uuid: str, number: int) -> None:
        self._xids.labels(uuid, str(number)).inc()

    def offended(self, ordinal: int, steps: int) -> None:
        self._offences.labels(str(ordinal)).inc(steps)

    def overusing(self, grants: int) -> None:
        self._over.set(grants)

    def failed(self, to: str) -> None:
        self._errors.labels(to).inc()

    def watch(self, collector: Collector) -> None:
        """Add gauges that are read when somebody looks."""
        self.registry.register(collector)


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
        self, snapshot: Callable[[], Snapshot], page: Callable[[Grant], PageState | None]
    ) -> None:
        self._snapshot = snapshot
        self._page = page

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
        text = "Who holds the pod to its memory: its own runtime, or nobody (no live runtime)."
        enforced = GaugeMetricFamily(
            "sojourn_grant_enforcement", text, labels=[*labels, "enforcement"]
        )
        for grant in self._snapshot()[2]:
            page = self._page(grant)
            if grant.holder is None or page is None:
                continue
            key = (str(grant.ordinal), grant.holder.namespace, grant.holder.pod)
            waited.add_metric(key, page.yielded_ns / 1e9)
            steps.add_metric(key, page.steps)
            for name, value in _grant_values(grant, page).items():
                families[name].add_metric(key, value)
            enforced.add_metric((*key, "runtime" if page.locked else "none"), 1)
        yield from (waited, steps, enforced, *families.values())


def _grant_values(grant: Grant, page: PageState) -> dict[str, float]:
    values: dict[str, float] = {
        "slices": grant.slices,
        "priority": grant.tier.priority,
        "share": grant.tier.share,
        "flag_raised": int(page.raised),
        "alive": int(page.locked),
    }
    inside = page.allocator
    if inside is not None and time.monotonic_ns() - inside.at_ns < ALLOCATOR_FRESH_NS:
        values |= {
            "allocator_reserved_bytes": inside.reserved,
            "allocator_used_bytes": inside.used,
            "allocator_inactive_split_bytes": inside.inactive_split,
            "allocator_largest_free_bytes": inside.largest_free,
        }
    return values


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
    band = gauge("memory_busy_percent", "Time with memory in use, by NVML.")
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
        if gpu.busy_percent is not None:
            busy.add_metric(key, gpu.busy_percent)
        if gpu.bandwidth_percent is not None:
            band.add_metric(key, gpu.bandwidth_percent)
    yield from (total, service, free, healthy, foreign, used, busy, band, limits)


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
