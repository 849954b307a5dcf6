"""Polled facts settle slowly: one slow window is no news."""

from dataclasses import replace

from sojourn_api.objects import LatencyMetric
from sojourn_operator.seen.poll import AGREEING, Target, _Known, _unheard, deaf, settle
from sojourn_operator.seen.report import Latency, RuntimeStatus

TARGET = Target(
    uid="u",
    node="node-a",
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


def after(*answers: RuntimeStatus | None, misses: float = 3) -> _Known:
    """What is known after polls that are five seconds apart."""
    known: _Known | None = None
    for number, one in enumerate(answers):
        known = settle(known, one, TARGET, now=5.0 * number, misses=misses)
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
    later = settle(first, answer(120.0), TARGET, now=15.0, misses=3)
    assert later.runtime.target == first.runtime.target


def test_without_traffic_nothing_is_claimed() -> None:
    fast = [answer(100.0)] * AGREEING
    assert after(*fast, *[answer(None)] * AGREEING).runtime.target is None


def test_a_measure_that_grew_old_is_no_verdict_any_more() -> None:
    """The runtime forgets latencies of long ago; one answer without them is no news yet."""
    met = after(*[answer(100.0)] * AGREEING)
    assert met.runtime.target is not None
    once = after(*[answer(100.0)] * AGREEING, answer())
    assert once.runtime.target == met.runtime.target
    assert after(*[answer(100.0)] * AGREEING, *[answer()] * AGREEING).runtime.target is None


def test_idle_needs_time_and_no_request() -> None:
    assert after(answer(idle=60.0)).runtime.idle
    assert not after(answer(idle=59.0)).runtime.idle
    assert not after(answer(idle=61.0, requests=1)).runtime.idle


def test_no_answer_keeps_what_is_known() -> None:
    known = after(*[answer(100.0)] * AGREEING)
    assert after(*[answer(100.0)] * AGREEING, None).runtime == known.runtime


def test_polls_in_a_row_without_an_answer_make_it_silent_and_the_first_answer_ends_it() -> None:
    assert not after(answer(), None, None).runtime.silent
    assert after(answer(), None, None, None).runtime.silent == "3 polls in 15 s"
    assert not after(answer(), None, None, None, answer()).runtime.silent


def test_one_slow_answer_now_and_then_changes_nothing() -> None:
    assert not after(answer(), None, None, answer(), None, None).runtime.silent


def test_the_words_of_a_silence_stay() -> None:
    """Or each poll would be a write."""
    assert after(answer(), *[None] * 9).runtime.silent == "3 polls in 15 s"


def test_of_a_runtime_that_never_answered_nothing_is_concluded() -> None:
    """After a restart of the operator, or behind a NetworkPolicy that keeps it out."""
    assert not after(*[None] * 9).runtime.silent


def test_whoever_leads_anew_hears_an_answer_before_it_judges() -> None:
    silent = after(answer(), None, None, None)
    fresh = _unheard(silent)
    assert not fresh.runtime.silent
    assert not settle(fresh, None, TARGET, now=99.0, misses=1).runtime.silent


def test_when_no_node_answers_it_is_the_operator_that_is_cut_off() -> None:
    there = replace(TARGET, uid="v", node="node-b")
    beside = replace(TARGET, uid="w")
    assert deaf({TARGET: None, there: None})
    assert not deaf({TARGET: None, there: answer()})
    assert not deaf({TARGET: None, beside: None}), "one node may well be dead"
