"""What runtimes say of themselves, well-formed or not."""

import json
from typing import Any

import pytest
from sojourn_api.objects import LatencyMetric
from sojourn_api.weights import Numbers
from sojourn_operator.seen.report import parse_end, parse_status

from tests.unit.pretend_session import report


def status(**changes: Any) -> str:
    said = {
        "v": 1,
        "phase": "Serving",
        "epoch": 3,
        "exact": True,
        "requestsRunning": 2,
        "requestsWaiting": 1,
        "idleSeconds": 1.5,
        "unsavedBytes": 10,
        "lastSnapshot": None,
        "latency": {"ttftP95Ms": 120.4, "itlP95Ms": None, "window": 20},
    }
    return json.dumps(said | changes)


def test_a_clean_pause_names_what_was_saved() -> None:
    end = parse_end(report(4))
    assert end is not None
    assert end.saved
    assert end.snapshot is not None
    assert (end.snapshot.tokens, end.snapshot.epoch) == (100, 4)


def test_a_pause_says_how_long_it_took() -> None:
    words = json.loads(report(4)) | {"stopMs": 1.6, "saveMs": 12.4}
    end = parse_end(json.dumps(words | {"syncMs": 6.0}))
    assert end is not None
    assert end.took == "stopped after 2 ms, saved in 12 ms, of which fsync 6 ms"
    end = parse_end(json.dumps(words))
    assert end is not None
    assert end.took == "stopped after 2 ms, saved in 12 ms"
    del words["saveMs"]
    end = parse_end(json.dumps(words))
    assert end is not None
    assert end.took == ""


def test_a_failure_says_whether_to_try_again() -> None:
    words = {"v": 1, "reason": "ModelNotFound", "message": "no file", "retry": False}
    end = parse_end(json.dumps(words))
    assert end is not None
    assert (end.saved, end.reason, end.retry, end.snapshot) == (False, "ModelNotFound", False, None)


@pytest.mark.parametrize(
    "text",
    ["", "Killed", "[1]", '{"v":1', '{"reason": 5}', '{"reason":"Paused","snapshot":{"tokens":1}}'],
)
def test_what_is_no_report_is_none(text: str) -> None:
    assert parse_end(text) is None


def test_a_reason_that_the_api_server_would_refuse_is_cleaned() -> None:
    end = parse_end('{"reason": "out of memory!"}')
    assert end is not None
    assert end.reason == "outofmemory"


def test_a_status_has_what_the_weights_say_of_themselves() -> None:
    found = parse_status(status(weights={"layers": 30, "heads": 9}))
    assert found is not None
    assert found.weights == Numbers(layers=30, heads=9)
    closed = parse_status(status(weights=None))
    assert closed is not None
    assert closed.weights is None


def test_a_status_counts_running_and_waiting_requests() -> None:
    found = parse_status(status())
    assert found is not None
    assert found.requests == 3
    assert found.latency.of(LatencyMetric.TIME_TO_FIRST_TOKEN) == 120.4
    assert found.latency.of(LatencyMetric.INTER_TOKEN_LATENCY) is None


@pytest.mark.parametrize("text", ["", "<html>", "{}", '{"phase": 1}'])
def test_what_is_no_status_is_none(text: str) -> None:
    assert parse_status(text) is None


def test_bytes_that_a_status_does_not_tell_are_unknown() -> None:
    known, unknown = parse_status(status()), parse_status('{"v": 1, "phase": "Serving"}')
    assert known is not None
    assert unknown is not None
    assert (known.unsaved_bytes, unknown.unsaved_bytes) == (10, None)
