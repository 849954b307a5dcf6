"""Polled facts settle slowly: one slow window is no news."""

from sojourn_api.objects import LatencyMetric
from sojourn_operator.poll import AGREEING, Target, _Known, settle
from sojourn_operator.report import Latency, RuntimeStatus

TARGET = Target(
    uid="u",
    url="http://127.0.0.1:8000/sojourn/v1/status",
    metric=LatencyMetric.TIME_TO_FIRST_TOKEN,
    target_ms=180,
    idle_after=60,
)


def answer(ttft: float | None = None, *, idle: float = 0.0, requests: int = 0) -> RuntimeStatus:
    return RuntimeStatus(
        phase="Serving",
        epoch=1,
        exact=True,
        exact_reason="",
        requests=requests,
        idle_seconds=idle,
        unsaved_bytes=0,
        snapshot=None,
        latency=Latency(ttft, None, 10 if ttft is not None else 0),
    )


def after(*answers: RuntimeStatus | None) -> _Known:
    known: _Known | None = None
    for one in answers:
        known = settle(known, one, TARGET)
    assert known is not None
    return known


def verdict(known: _Known) -> str:
    return known.runtime.target.reason if known.runtime.target else ""


def test_agreeing_answers_in_a_row_settle_the_target() -> None:
    fast = [answer(100.0)] * AGREEING
    assert verdict(after(*fast[1:])) == ""
    assert verdict(after(*fast)) == "Met"
    assert verdict(after(*[answer(300.0)] * AGREEING)) == "Missed"


def test_one_slow_window_changes_nothing() -> None:
    fast = [answer(100.0)] * AGREEING
    assert verdict(after(*fast, answer(999.0))) == "Met"
    assert verdict(after(*fast, answer(999.0), answer(100.0))) == "Met"


def test_the_message_keeps_the_figures_of_the_turn() -> None:
    """Or each poll would be a write."""
    first = after(*[answer(100.0)] * AGREEING)
    assert settle(first, answer(120.0), TARGET).runtime.target == first.runtime.target


def test_without_traffic_nothing_is_claimed() -> None:
    fast = [answer(100.0)] * AGREEING
    assert after(*fast, *[answer(None)] * AGREEING).runtime.target is None


def test_idle_needs_time_and_no_request() -> None:
    assert after(answer(idle=60.0)).runtime.idle
    assert not after(answer(idle=59.0)).runtime.idle
    assert not after(answer(idle=61.0, requests=1)).runtime.idle


def test_no_answer_keeps_what_is_known() -> None:
    known = after(*[answer(100.0)] * AGREEING)
    assert settle(known, None, TARGET) == known
