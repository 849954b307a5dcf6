"""What the gateway makes of an LLMSession, and what it does with a call then."""

from typing import Any

import pytest
from sojourn_api import names
from sojourn_gateway.calls import Call
from sojourn_gateway.decide import Forward, Hold, Refuse, decide
from sojourn_gateway.session import Session, from_object, from_page, wake_text

PAUSED_AT = "2026-01-01T10:00:00Z"


def raw(
    *,
    ready: tuple[str, str, str] = ("True", "Serving", "answers"),
    paused: tuple[str, str] = ("False", "Running"),
    annotations: dict[str, str] | None = None,
    meta: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "one",
            "namespace": "chats",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": annotations or {},
        }
        | (meta or {}),
        "spec": {"model": "smol", "tier": "silver"} | spec,
        "status": {
            "endpoint": "http://one.chats.svc:8000/v1",
            "pausedAt": PAUSED_AT,
            "conditions": [
                dict(zip(("status", "reason", "message"), ready, strict=True), type=names.READY),
                {
                    "type": names.PAUSED,
                    "status": paused[0],
                    "reason": paused[1],
                    "message": "as it says",
                },
            ],
        },
    }


def call(*headers: tuple[str, str]) -> Call:
    return Call(key="chats/one", method="POST", target="/v1/responses", headers=headers)


NOT_READY = ("False", "WaitingForRoom", "needs 12 slices")
IDLE: Any = {"ready": ("False", "Idle", "had no requests"), "paused": ("True", "Idle")}


def test_a_session_that_serves_is_forwarded_to() -> None:
    session = from_object(raw())
    assert (session.key, session.model) == ("chats/one", "smol")
    assert session.endpoint == "http://one.chats.svc:8000"
    assert session.created == 1767225600
    assert decide(call(), session) == Forward(session)


def test_a_session_on_its_way_back_is_waited_for_and_says_why() -> None:
    session = from_object(raw(ready=NOT_READY, paused=("True", "PreemptedByGold")))
    assert decide(call(), session) == Hold(session, wake=False)
    assert "WaitingForRoom" in session.words
    assert "needs 12 slices" in session.words


def test_a_session_that_sleeps_is_waited_for_and_woken() -> None:
    session = from_object(raw(**IDLE))
    assert decide(call(), session) == Hold(session, wake=True)


@pytest.mark.parametrize("woken", [PAUSED_AT, "2026-01-01T10:00:01Z"])
def test_a_session_that_was_woken_is_not_woken_again(woken: str) -> None:
    session = from_object(raw(**IDLE, annotations={names.ANNOTATION_WAKE: woken}))
    assert decide(call(), session) == Hold(session, wake=False)


@pytest.mark.parametrize("woken", ["2026-01-01T09:59:59Z", "soon", ""])
def test_an_earlier_wake_does_not_count(woken: str) -> None:
    session = from_object(raw(**IDLE, annotations={names.ANNOTATION_WAKE: woken}))
    assert decide(call(), session) == Hold(session, wake=True)


def test_a_pause_under_way_cannot_be_woken_from_yet() -> None:
    session = from_object(raw(ready=("False", "Pausing", "it is idle"), paused=("False", "Idle")))
    assert decide(call(), session) == Hold(session, wake=False)


def test_the_wake_is_never_before_the_pause_whatever_the_clocks_say() -> None:
    session = from_object(raw(**IDLE))
    assert wake_text(session, now=0.0) == PAUSED_AT
    assert wake_text(session, now=1767262000.9) == "2026-01-01T10:06:40Z"


def test_a_suspended_session_is_waited_for_only_by_open_streams() -> None:
    session = from_object(raw(ready=("False", "Suspended", "spec.suspend is true"), suspend=True))
    decision = decide(call(), session)
    assert isinstance(decision, Refuse)
    assert decision.error.status == 503
    assert decision.error.code == "Suspended"
    assert decision.error.headers["x-should-retry"] == "false"
    assert int(decision.error.headers["Retry-After"]) > 0
    assert decide(call(), session, open_stream=True) == Hold(session, wake=False)


def refusal(session: Session) -> Refuse:
    decision = decide(call(), session)
    assert isinstance(decision, Refuse)
    assert (decision.error.status, decision.error.code) == (503, session.reason)
    assert decision.error.headers["x-should-retry"] == "false"
    assert session.message in decision.error.message
    return decision


@pytest.mark.parametrize("reason", sorted(names.NEED_A_CHANGE))
def test_a_session_that_cannot_start_as_it_is_is_refused_in_its_own_words(reason: str) -> None:
    session = from_object(raw(ready=("False", reason, "there is no such thing; create it")))
    refusal(session)
    assert decide(call(), session, open_stream=True) == Hold(session, wake=False)


def failed(*, retry: bool, ready: tuple[str, str, str]) -> Session:
    found = raw(ready=ready)
    found["status"]["failure"] = {
        "reason": "ModelNotFound",
        "message": "no file",
        "retry": retry,
        "at": PAUSED_AT,
    }
    return from_object(found)


NO_FILE = ("False", "ModelNotFound", "no file; waits until the session or its model is changed")


def test_a_session_whose_last_start_failed_for_good_is_refused() -> None:
    refusal(failed(retry=False, ready=NO_FILE))


def test_a_session_that_is_tried_again_is_waited_for() -> None:
    again = failed(retry=True, ready=NO_FILE)
    assert decide(call(), again) == Hold(again, wake=False)
    changed = failed(retry=False, ready=("False", "Starting", "the pod starts on node-a"))
    assert decide(call(), changed) == Hold(changed, wake=False)


def test_a_suspended_session_that_still_serves_is_forwarded_to() -> None:
    session = from_object(raw(suspend=True))
    assert decide(call(), session) == Forward(session)


def test_an_unknown_session_is_told_as_an_unknown_model() -> None:
    decision = decide(call(), None)
    assert isinstance(decision, Refuse)
    assert (decision.error.status, decision.error.code) == (404, "model_not_found")


@pytest.mark.parametrize("header", [(), (("authorization", "Basic x"),), (("A", "Bearer x"),)])
def test_nobody_waits_or_wakes_without_any_key_where_one_is_asked_for(header: Any) -> None:
    session = from_object(raw(**IDLE, apiKeySecretRef={"name": "key"}))
    decision = decide(call(*header), session)
    assert isinstance(decision, Refuse)
    assert decision.error.status == 401
    assert isinstance(decide(call(("authorization", "bearer x")), session), Hold)


def test_a_session_that_cannot_be_read_is_there_and_says_why() -> None:
    session = from_object(raw(model=3))
    decision = decide(call(), session)
    assert isinstance(decision, Refuse)
    assert "spec.model" in decision.error.message


def test_a_new_session_without_status_is_waited_for() -> None:
    new = raw()
    del new["status"]
    assert isinstance(decide(call(), from_object(new)), Hold)


def test_a_status_page_says_whether_its_runtime_answers() -> None:
    page = {"phase": "Serving", "model": "smol"}
    assert from_page("a/b", "http://x", page).ready
    assert from_page("a/b", "http://x", page).model == "smol"
    assert not from_page("a/b", "http://x", {"phase": "Restoring"}).ready
    assert from_page("a/b", "http://x", None).reason == "NotAnswering"


def test_words_of_a_session_are_a_sentence() -> None:
    words = Session(key="a/b", reason="Starting", message="the pod starts on node-a").words
    assert words == "Session a/b does not answer (Starting): the pod starts on node-a."
