"""Numbers for Prometheus.

What means the same as in vLLM has vLLM's name and its label `model_name`, so that dashboards and
alerts for it go on; the rest begins with `sojourn_`. Latencies are taken where a token leaves the
engine for its reader: time to first token from the request's arrival, inter-token latency as the
gap between two tokens of one choice. An own registry, so that two servers of one process (tests)
do not meet.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from sojourn_runtime.engine.request import Finish, Origin
from sojourn_runtime.stats import HAND_OVER
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
MODEL: Final = "model_name"
OF_VLLM: Final = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "requests_parked_total": "num_preemptions_total",
    "kv_used_share": "kv_cache_usage_perc",
    "tokens_generated_total": "generation_tokens_total",
}
"""Numbers of the session that vLLM counts too, and what it calls them."""

HandOver = Callable[[], tuple[Sequence[int], float]]


class Metrics:
    """All that the server counts."""

    def __init__(
        self,
        gauges: Callable[[], Mapping[str, float]],
        *,
        model: str,
        hand_over: HandOver,
    ) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._first = self._histogram(
            "time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            buckets=FIRST_BUCKETS,
        )
        self._gap = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of one choice.", buckets=GAP_BUCKETS
        )
        self._whole = self._histogram(
            "e2e_request_latency_seconds",
            "From the arrival of a request to its last token.",
            buckets=WHOLE_BUCKETS,
        )
        self._finished = self._counter(
            "request_success", "Choices that ended, by reason.", "finished_reason"
        )
        self._prompt = [
            self._counter("prompt_tokens", "Tokens of prompts."),
            self._counter("prefix_cache_queries", "Tokens whose context was looked for."),
        ]
        self._cached = [
            self._counter("prompt_tokens_cached", "Tokens of prompts whose context was there."),
            self._counter("prefix_cache_hits", "Tokens whose context was found."),
        ]
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
        self.registry.register(_SessionCollector(gauges, hand_over, model=model))

    def _histogram(self, name: str, text: str, *, buckets: Sequence[float]) -> Histogram:
        made = Histogram(f"vllm:{name}", text, [MODEL], buckets=buckets, registry=self.registry)
        return made.labels(self._model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        made = Counter(f"vllm:{name}", text, [MODEL, *labels], registry=self.registry)
        return made if labels else made.labels(self._model)

    def answered(self, *, route: str, status: int) -> None:
        self._http.labels(route, str(status)).inc()

    def prompt(self, *, tokens: int, cached: int, origin: Origin) -> None:
        for counter in self._prompt:
            counter.inc(tokens)
        for counter in self._cached:
            counter.inc(cached)
        for source, found in asdict(origin).items():
            self._source.labels(source).inc(found)
        self._source.labels("computed").inc(tokens - cached)

    def started(self, seconds: float) -> None:
        self._first.observe(seconds)

    def gap(self, seconds: float) -> None:
        self._gap.observe(seconds)

    def finished(self, reason: str, *, seconds: float) -> None:
        """`cancelled` is vLLM's `abort`; the other words are the same."""
        known = "abort" if reason == Finish.CANCELLED.word else reason
        self._finished.labels(self._model, known).inc()
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

    def __init__(
        self, gauges: Callable[[], Mapping[str, float]], hand_over: HandOver, *, model: str
    ) -> None:
        self._gauges = gauges
        self._hand_over = hand_over
        self._model = model

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: at registration the session may not be there yet."""
        return ()

    def collect(
        self,
    ) -> Iterable[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        for name, value in sorted(self._gauges().items()):
            counts = name.endswith("_total")
            kind: type[CounterMetricFamily | GaugeMetricFamily]
            kind = CounterMetricFamily if counts else GaugeMetricFamily
            text = name.replace("_", " ").capitalize() + "."
            if name in OF_VLLM:
                family = kind(f"vllm:{OF_VLLM[name]}", text, labels=[MODEL])
                family.add_metric([self._model], value)
                yield family
            else:
                yield kind(f"sojourn_{name}", text, value=value)
        steps, seconds = self._hand_over()
        bounds = (*map(str, HAND_OVER), "+Inf")
        yield HistogramMetricFamily(
            "sojourn_step_hand_over_seconds",
            "What a step takes between scheduler and model, beside the pass itself.",
            buckets=list(zip(bounds, accumulate(steps), strict=True)),
            sum_value=seconds,
        )
