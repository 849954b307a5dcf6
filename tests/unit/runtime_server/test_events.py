"""The events of a response are a function of its record and its tokens."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from sojourn_runtime.context.conversation import Ending, EndReason, Message, Response, Role
from sojourn_runtime.server import events
from sojourn_runtime.server.tools import Said, ToolCall

ADAPTER: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ECHO: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "metadata": {},
}


def response(*, background: bool = False, reason: EndReason | None = None, n: int = 3) -> Response:
    ending = None if reason is None else Ending(reason, at=7.5, tokens=(65,) * n, message="why")
    return Response(
        id="resp_1",
        created_at=7.0,
        model="m",
        items=(Message(id="msg_0", role=Role.USER, texts=("hi",)),),
        prompt_tokens=5,
        background=background,
        echo=ECHO,
        ending=ending,
    )


def said(*texts: str) -> list[Said]:
    return [Said(text) for text in texts]


def kinds(found: list[events.Event]) -> list[str]:
    return [event.kind for event in found]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("reason", list(EndReason))
def test_every_event_is_of_openais_type(*, background: bool, reason: EndReason) -> None:
    for event in events.replay(response(background=background, reason=reason), said("a", "", "b")):
        parsed = ADAPTER.validate_python(event.body(), strict=True)
        assert parsed.type == event.kind
        assert type(parsed).__name__ != "ResponseErrorEvent"


@given(
    background=st.booleans(),
    reason=st.sampled_from(list(EndReason)),
    texts=st.lists(st.text(max_size=3), max_size=30),
)
def test_numbers_run_from_zero_without_gap(
    *, background: bool, reason: EndReason, texts: list[str]
) -> None:
    found = list(
        events.replay(response(background=background, reason=reason, n=len(texts)), said(*texts))
    )
    assert [event.sequence for event in found] == list(range(len(found)))
    assert kinds(found).count("response.output_text.delta") == len(texts)


@given(
    background=st.booleans(),
    texts=st.lists(st.sampled_from(["", "a", "é", "\n"]), max_size=20),
    cut=st.integers(-1, 40),
)
def test_a_stream_that_was_cut_anywhere_goes_on_with_the_same_events(
    *, background: bool, texts: list[str], cut: int
) -> None:
    """What a reader saw before the cut and what it sees behind it are the whole, once."""
    whole = response(background=background, reason=EndReason.STOP, n=len(texts))
    expected = [event.body() for event in events.replay(whole, said(*texts))]
    # before the cut the response has no end yet
    before = [
        *events.opening(replace(whole, ending=None)),
        *(events.delta(whole, position=p, text=text) for p, text in enumerate(texts)),
    ]
    seen = [event.body() for event in before if event.sequence <= cut]
    # behind it: the live path asks the engine for the positions after the cut
    start = events.position_after(whole, len(seen) - 1) + 1
    rest = [
        *events.opening(whole),
        *(events.delta(whole, position=p, text=texts[p]) for p in range(start, len(texts))),
        *events.closing(whole, Said("".join(texts))),
    ]
    seen += [event.body() for event in rest if event.sequence >= len(seen)]
    assert seen == expected


def test_a_background_response_is_queued_first() -> None:
    found = events.opening(response(background=True))
    assert kinds(found)[:3] == ["response.created", "response.queued", "response.in_progress"]
    first: Any = found[0].fields["response"]
    assert first["status"] == "queued"
    assert len(found) == events.first_delta(response(background=True))


def test_a_foreground_response_begins_at_once() -> None:
    found = events.opening(response())
    assert kinds(found)[:2] == ["response.created", "response.in_progress"]
    assert len(found) == events.first_delta(response())


def test_a_token_limit_makes_it_incomplete() -> None:
    last = events.closing(response(reason=EndReason.LENGTH), Said("abc"))[-1]
    assert last.kind == "response.incomplete"
    body: Any = last.fields["response"]
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"


def test_a_cancelled_response_ends_with_its_status_and_no_done_events() -> None:
    (last,) = events.closing(response(reason=EndReason.CANCELLED), Said("ab"))
    body: Any = last.fields["response"]
    assert body["status"] == "cancelled"
    assert body["output"][0]["content"][0]["text"] == "ab"


def test_a_failed_response_says_why() -> None:
    (last,) = events.closing(response(reason=EndReason.FAILED, n=0), Said(""))
    assert last.kind == "response.failed"
    body: Any = last.fields["response"]
    assert body["error"] == {"code": "server_error", "message": "why"}
    assert body["output"] == []


def test_a_running_response_has_no_closing() -> None:
    with pytest.raises(ValueError, match="has not ended"):
        events.closing(response(), Said(""))


@pytest.mark.parametrize(("sequence", "position"), [(-1, -1), (0, -1), (3, -1), (4, 0), (9, 5)])
def test_a_number_names_a_position(sequence: int, position: int) -> None:
    assert events.position_after(response(), sequence) == position


def test_a_call_of_a_tool_is_an_item_of_its_own_behind_the_text() -> None:
    ended = response(reason=EndReason.STOP)
    call = ToolCall("call_1_0", name="look", arguments='{"at": 1}')
    found = events.closing(ended, Said("Let me see.", (call,)))
    assert kinds(found)[3:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    for event in found:
        assert ADAPTER.validate_python(event.body(), strict=True).type == event.kind
    last: Any = found[-1].fields["response"]
    assert [item["type"] for item in last["output"]] == ["message", "function_call"]
