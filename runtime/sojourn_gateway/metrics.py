"""Numbers for Prometheus; never a session's name, which would make a series of each."""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX: Final = "sojourn_gateway"
HELD_BUCKETS: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """All that the gateway counts; an own registry, so that two gateways of one process may be."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by HTTP status.", "status")
        self.splices = self._counter(
            "splices", "Cut streams, by what became of them: spliced, passed_on, lost.", "outcome"
        )
        self.wakes = self._counter("wakes", "Idle sessions that were woken.")
        self.source_errors = self._counter(
            "source_errors", "Failed looks at the API server or the file of sessions."
        )
        self.waited = Histogram(
            f"{PREFIX}_held_seconds",
            "How long requests were held for their session.",
            buckets=HELD_BUCKETS,
            registry=self.registry,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}_total", text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A number that is asked for when somebody looks."""
        Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        return generate_latest(self.registry)
