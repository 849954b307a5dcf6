"""What Prometheus sees of the operator. Names only; who counts is said at each call site."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

LEADER: Final = Gauge("sojourn_operator_leader", "1 while this replica leads.")
LEASE_EPOCH: Final = Gauge("sojourn_operator_lease_epoch", "Changes of leadership so far.")
SESSIONS: Final = Gauge(
    "sojourn_operator_sessions", "Sessions by tier and phase, as planned with.", ["tier", "phase"]
)
DECISION_SECONDS: Final = Histogram(
    "sojourn_operator_decision_seconds",
    "Time of one plan.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
)
FALLBACK: Final = Gauge(
    "sojourn_operator_plan_fallback", "1 while the built-in generation of the plan decides."
)
FALLBACKS: Final = Counter(
    "sojourn_operator_plan_fallbacks",
    "How often the built-in generation of the plan took over, by cause: failures, slow, version.",
    ["cause"],
)
ACTIONS: Final = Counter("sojourn_operator_actions", "Actions executed, by kind.", ["action"])
WRITES: Final = Counter(
    "sojourn_operator_api_writes", "Requests that change objects.", ["resource", "verb"]
)
ERRORS: Final = Counter(
    "sojourn_operator_errors", "Steps that failed and are tried again.", ["step"]
)
FAILED_PASSES: Final = Gauge(
    "sojourn_operator_failed_passes", "Whole passes that failed in a row; 0 while they work."
)
POLL_ERRORS: Final = Counter("sojourn_operator_poll_errors", "Runtimes that did not answer a poll.")
LOST_EVENTS: Final = Counter(
    "sojourn_operator_relist_corrections", "Objects that a relist had to correct.", ["resource"]
)
UNTOLD: Final = Counter(
    "sojourn_operator_events_untold", "Normal events left out, since too many came at once."
)
