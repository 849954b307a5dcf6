"""What must be true of the story that `make demo` tells, on two real kubelets."""

from collections import Counter
from typing import Any

import pytest
from steps import condition, condition_of
from story import Facts, Run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["greedy", "seeded", "drained"])
def test_the_text_equals_that_of_a_run_never_paused(facts: Facts, which: int) -> None:
    run: Run = facts.runs[which]
    assert run.reading.deltas == run.control.deltas


@pytest.mark.parametrize("which", [0, 1, 2], ids=["greedy", "seeded", "drained"])
def test_a_client_sees_every_event_once_over_all_attachments(facts: Facts, which: int) -> None:
    run: Run = facts.runs[which]
    assert run.reading.numbers == list(range(len(run.reading.numbers)))
    assert run.reading.numbers == run.control.numbers


def test_the_pause_came_in_the_middle_of_the_responses(facts: Facts) -> None:
    """Else nothing of the above was shown: the text was complete before the pause."""
    saved = facts.paused["status"]["snapshot"]["tokens"]
    assert 0 < saved < sum(len(run.reading.deltas) for run in facts.runs[:2])


def test_the_paused_session_says_who_paused_it(facts: Facts) -> None:
    assert condition_of(facts.paused, "Paused")["reason"] == "PreemptedByGold"
    assert facts.paused["status"]["preemptedBy"].endswith("gold-1")
    assert condition(facts.paused, "Ready") == "False"


def test_the_paused_session_says_where_its_context_is(facts: Facts) -> None:
    snapshot = facts.paused["status"]["snapshot"]
    assert snapshot["uri"] in condition_of(facts.paused, "ContextSaved")["message"]
    assert snapshot["digest"].startswith("sha256:")


def test_gold_is_on_the_only_gpu_that_has_its_share(facts: Facts) -> None:
    assert "H100" in facts.gold["status"]["gpu"]


def test_the_session_came_back_on_the_other_node_with_exact_context(facts: Facts) -> None:
    assert facts.back["status"]["node"] != facts.paused["status"]["placement"]["node"]
    assert facts.back["status"]["exact"] is True


def test_the_drained_session_moved(facts: Facts) -> None:
    assert facts.moved["status"]["node"] != facts.back["status"]["node"]
    assert condition(facts.moved, "Ready") == "True"


def test_events_tell_the_story_once(facts: Facts) -> None:
    """One event per fact: the same reason and message is never told twice."""
    told = Counter((event["reason"], event["message"]) for event in facts.events)
    assert [what for what, times in told.items() if times > 1] == []
    reasons = {event["reason"] for event in facts.events}
    assert {"Placed", "Preempted", "ContextSaved", "Resumed"} <= reasons


def test_every_condition_is_always_there(facts: Facts) -> None:
    for session in (facts.paused, facts.gold, facts.back, facts.moved):
        kinds = _kinds(session)
        assert kinds == ["ContextSaved", "Paused", "Placed", "Ready", "TargetMet"]


def _kinds(session: dict[str, Any]) -> list[str]:
    return sorted(c["type"] for c in session["status"]["conditions"])
