"""Items, responses and conversations, and the documents that keep them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.context import conversation as c
from sojourn_runtime.engine.request import Origin

texts = st.text(max_size=20)
ids = st.text("abc_", min_size=1, max_size=8)
messages = st.builds(
    c.Message,
    id=ids,
    role=st.sampled_from(c.Role),
    texts=st.lists(texts, min_size=1, max_size=3).map(tuple),
    complete=st.booleans(),
)
calls = st.builds(c.FunctionCall, id=ids, call_id=ids, name=ids, arguments=texts)
outputs = st.builds(c.FunctionOutput, id=ids, call_id=ids, output=texts)
items = st.lists(st.one_of(messages, calls, outputs), max_size=5).map(tuple)
endings = st.builds(
    c.Ending,
    reason=st.sampled_from(c.EndReason),
    at=st.floats(0, 1e10),
    tokens=st.lists(st.integers(0, 50_000), max_size=5).map(tuple),
    message=texts,
)
responses = st.builds(
    c.Response,
    id=ids,
    created_at=st.floats(0, 1e10),
    model=ids,
    items=items,
    prompt_tokens=st.integers(0, 9000),
    instructions=st.none() | texts,
    previous=st.none() | ids,
    conversation=st.none() | ids,
    background=st.booleans(),
    echo=st.dictionaries(ids, st.none() | texts | st.integers()),
    cached_tokens=st.integers(0, 9000),
    origin=st.builds(Origin, device=st.integers(0), host=st.integers(0), store=st.integers(0)),
    ending=st.none() | endings,
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(responses)
def test_a_response_survives_its_document(response: c.Response) -> None:
    document = through_json(c.response_to_json(response))
    assert c.response_from_json(document) == response


@given(
    st.builds(
        c.Conversation,
        id=ids,
        created_at=st.integers(0, 2**33),
        metadata=st.dictionaries(ids, texts, max_size=3),
        items=items,
    )
)
def test_a_conversation_survives_its_document(conversation: c.Conversation) -> None:
    document = through_json(c.conversation_to_json(conversation))
    assert c.conversation_from_json(document) == conversation


def test_the_document_of_an_ended_response_holds_ids_and_no_text() -> None:
    ending = c.Ending(c.EndReason.STOP, at=1.0, tokens=(5, 6))
    response = c.Response(
        id="resp_1", created_at=0, model="m", items=(), prompt_tokens=1, ending=ending
    )
    assert c.response_to_json(response)["ending"] == {
        "reason": "stop",
        "at": 1.0,
        "tokens": [5, 6],
        "message": "",
    }


def say(name: str, role: c.Role = c.Role.USER) -> c.Message:
    return c.Message(id=name, role=role, texts=(name,))


def test_instructions_come_first_and_developers_are_systems() -> None:
    found = c.chat_messages([say("a", c.Role.DEVELOPER), say("b")], instructions="be kind")
    assert [(m["role"], m["content"]) for m in found] == [
        ("system", "be kind"),
        ("system", "a"),
        ("user", "b"),
    ]


def test_tools_reach_the_template_as_calls_and_answers() -> None:
    call = c.FunctionCall(id="fc", call_id="c1", name="f", arguments="{}")
    answer = c.FunctionOutput(id="fco", call_id="c1", output="42")
    first, second = c.chat_messages([call, answer], instructions=None)
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert (second["role"], second["tool_call_id"], second["content"]) == ("tool", "c1", "42")


def test_calls_join_the_message_before_them() -> None:
    calls = [
        c.FunctionCall(id=f"fc{n}", call_id=f"c{n}", name="f", arguments="not json")
        for n in range(2)
    ]
    (only,) = c.chat_messages([say("a", c.Role.ASSISTANT), *calls], instructions=None)
    assert only["content"] == "a"
    assert [call["id"] for call in only["tool_calls"]] == ["c0", "c1"]
    assert only["tool_calls"][0]["function"]["arguments"] == "not json"


def test_the_oldest_goes_first_but_never_the_system_or_the_last() -> None:
    system, old, last = say("s", c.Role.SYSTEM), say("o"), say("l")
    shorter = c.drop_oldest((system, old, last))
    assert shorter == (system, last)
    assert c.drop_oldest((system, last)) is None


def test_a_tools_answer_goes_with_its_call() -> None:
    call = c.FunctionCall(id="fc", call_id="c1", name="f", arguments="{}")
    answer = c.FunctionOutput(id="fco", call_id="c1", output="42")
    last = say("l")
    assert c.drop_oldest((call, answer, last)) == (last,)


@given(items)
def test_dropping_ends(found: tuple[c.Item, ...]) -> None:
    rounds = 0
    shorter: tuple[c.Item, ...] | None = found
    while shorter is not None:
        rounds += 1
        shorter = c.drop_oldest(shorter)
    assert rounds <= len(found) + 1


@pytest.mark.parametrize(("echo", "stored"), [({}, True), ({"store": False}, False)])
def test_store_is_asked_of_the_echo(*, echo: dict[str, Any], stored: bool) -> None:
    response = c.Response(id="r", created_at=0, model="m", items=(), prompt_tokens=0, echo=echo)
    assert response.stored is stored
