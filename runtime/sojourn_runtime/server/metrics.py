"""Numbers for Prometheus.

Latencies are taken where a token leaves the engine for its reader: time to first token from the
request's arrival, inter-token latency as the gap between two tokens of one choice. An own
registry, so that two servers of one process (tests) do not meet.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sojourn_runtime.engine.request import Finish, Origin
from sojourn_runtime.stream import TokenEvent

FIRST_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.18, 0.25, 0.35, 0.5, 0.75),
    *(1, 2.5, 5, 10, 30, 60, 120),
)
"""With the targets of the shipped tiers (180 and 350 ms) as bounds of their own."""
GAP_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.18, 0.25, 0.35, 0.5, 1, 5, 30),
)
WHOLE_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All that the server counts."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self.registry = CollectorRegistry()
        self._first = Histogram(
            "sojourn_request_time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            buckets=FIRST_BUCKETS,
            registry=self.registry,
        )
        self._gap = Histogram(
            "sojourn_request_inter_token_latency_seconds",
            "Between two tokens of one choice.",
            buckets=GAP_BUCKETS,
            registry=self.registry,
        )
        self._whole = Histogram(
            "sojourn_request_duration_seconds",
            "From the arrival of a request to its last token.",
            buckets=WHOLE_BUCKETS,
            registry=self.registry,
        )
        self._finished = Counter(
            "sojourn_requests_finished_total",
            "Choices that ended, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._prompt = Counter(
            "sojourn_prompt_tokens_total", "Tokens of prompts.", registry=self.registry
        )
        self._cached = Counter(
            "sojourn_prompt_tokens_cached_total",
            "Tokens of prompts whose context was there already.",
            registry=self.registry,
        )
        self._source = Counter(
            "sojourn_prompt_tokens_by_source_total",
            "Tokens of prompts, by where their context was: device, host, store, or computed.",
            ["source"],
            registry=self.registry,
        )
        self._http = Counter(
            "sojourn_http_requests_total",
            "Answers, by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.registry.register(_SessionCollector(gauges))

    def answered(self, *, route: str, status: int) -> None:
        self._http.labels(route, str(status)).inc()

    def prompt(self, *, tokens: int, cached: int, origin: Origin) -> None:
        self._prompt.inc(tokens)
        self._cached.inc(cached)
        for source, found in asdict(origin).items():
            self._source.labels(source).inc(found)
        self._source.labels("computed").inc(tokens - cached)

    def started(self, seconds: float) -> None:
        self._first.observe(seconds)

    def gap(self, seconds: float) -> None:
        self._gap.observe(seconds)

    def finished(self, reason: str, *, seconds: float) -> None:
        self._finished.labels(reason).inc()
        self._whole.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class Stopwatch:
    """Times the tokens of one choice as they come."""

    __slots__ = ("_arrived", "_clock", "_last", "_metrics", "_seen")

    def __init__(
        self,
        metrics: Metrics,
        *,
        seen: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seen` tokens were there before (a reader that came back): they are not timed again."""
        self._metrics = metrics
        self._clock = clock
        self._arrived = clock()
        self._last: float | None = None
        self._seen = seen

    def tokens(self, events: Sequence[TokenEvent]) -> None:
        now = self._clock()
        for event in events:
            if event.position < self._seen:
                continue
            if event.position == 0:
                self._metrics.started(now - self._arrived)
            elif self._last is not None:
                # of tokens that came together, the first waited and the others did not
                self._metrics.gap(now - self._last)
            self._last = now
            if event.finish is not Finish.NONE:
                self.ended(event.finish.word)

    def ended(self, reason: str) -> None:
        self._metrics.finished(reason, seconds=self._clock() - self._arrived)


class _SessionCollector(Collector):
    """The session's own numbers, read when Prometheus asks."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: at registration the session may not be there yet."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        for name, value in sorted(self._gauges().items()):
            full = f"sojourn_{name}"
            text = name.replace("_", " ").capitalize() + "."
            if name.endswith("_total"):
                yield CounterMetricFamily(full, text, value=value)
            else:
                yield GaugeMetricFamily(full, text, value=value)
