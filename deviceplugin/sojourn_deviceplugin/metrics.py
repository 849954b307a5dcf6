"""Prometheus metrics that threads count; the gauges read at the scrape are `gauges`'.

Names carry units; what is unknown has no sample, never a zero.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import Collector
from sojourn_api.objects import Offender

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
        self._offenders = Gauge(
            "sojourn_offenders",
            "Pods that take more than granted; stop is true once the operator is asked to pause.",
            ["namespace", "pod", "reason", "stop"],
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

    def offenders(self, standing: Iterable[Offender]) -> None:
        self._offenders.clear()
        for one in standing:
            stop = str(one.stop).lower()
            self._offenders.labels(one.namespace, one.pod, one.reason, stop).set(1)

    def failed(self, to: str) -> None:
        self._errors.labels(to).inc()

    def watch(self, collector: Collector) -> None:
        """Add gauges that are read when somebody looks."""
        self.registry.register(collector)
