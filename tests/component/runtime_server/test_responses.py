"""Responses and conversations, driven by OpenAI's own client."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

MODEL = "bytes"


@pytest.fixture
def client(rig: Any) -> AsyncOpenAI:
    found: AsyncOpenAI = rig.client
    return found


def say_prompt(request: Any) -> str:
    return "<" + bytes(request.prompt).decode().replace("\n", "|") + ">"


async def test_a_response_comes_whole_and_is_kept(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.cached = 3
    made = await client.responses.create(
        model=MODEL, input="Hi", instructions="Be kind.", metadata={"k": "v"}, temperature=0.3
    )
    assert (made.status, made.output_text) == ("completed", "All is well.")
    assert (made.instructions, made.metadata, made.temperature) == ("Be kind.", {"k": "v"}, 0.3)
    assert made.usage is not None
    assert made.usage.input_tokens_details.cached_tokens == 3
    assert made.completed_at is not None
    again = await client.responses.retrieve(made.id)
    assert again == made
    assert rig.session.kept == []


async def test_events_tell_the_same_as_the_whole(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="Hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == [*"All is well.", ""]
    last = events[-1]
    assert last.type == "response.completed"
    assert await client.responses.retrieve(last.response.id) == last.response


async def test_openais_stream_helper_understands_the_events(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="Hi") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "All is well."


async def test_too_few_tokens_make_it_incomplete(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="Hi", max_output_tokens=3)
    assert (made.status, made.output_text) == ("incomplete", "All")
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


async def test_a_response_follows_another(rig: Any, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="1", instructions="gone later")
    rig.session.reply = lambda _: "Second."
    second = await client.responses.create(model=MODEL, input="2", previous_response_id=first.id)
    rig.session.reply = say_prompt
    third = await client.responses.create(
        model=MODEL, input="3", previous_response_id=second.id, instructions="now"
    )
    turns = "user: 1|assistant: All is well.|user: 2|assistant: Second.|user: 3|assistant:"
    assert third.output_text == f"<system: now|{turns}>"
    assert third.previous_response_id == second.id


async def test_a_background_response_is_queued_polled_and_done(
    rig: Any, client: AsyncOpenAI
) -> None:
    rig.session.allow(0)
    made = await client.responses.create(model=MODEL, input="Hi", background=True)
    assert made.status == "queued"
    assert (await client.responses.retrieve(made.id)).status == "queued"
    rig.session.allow(2)
    while (polled := await client.responses.retrieve(made.id)).status == "queued":
        pass
    assert polled.status == "in_progress"
    rig.session.allow(None)
    while (polled := await client.responses.retrieve(made.id)).status == "in_progress":
        pass
    assert (polled.status, polled.output_text) == ("completed", "All is well.")


@pytest.mark.parametrize("after", [-1, 0, 3, 4, 5, 9, 20, 21])
async def test_a_stream_is_attached_again_behind_a_number(client: AsyncOpenAI, after: int) -> None:
    stream = await client.responses.create(model=MODEL, input="Hi", background=True, stream=True)
    whole = [event async for event in stream]
    assert whole[0].type == "response.created"
    again = await client.responses.retrieve(whole[0].response.id, stream=True, starting_after=after)
    assert [event async for event in again] == whole[after + 1 :]


async def test_a_number_beyond_the_last_event_is_refused(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="Hi", background=True, stream=True)
    whole = [event async for event in stream]
    assert whole[0].type == "response.created"
    last = whole[-1].sequence_number
    with pytest.raises(openai.BadRequestError, match=f"last event of this response is {last}"):
        await client.responses.retrieve(whole[0].response.id, stream=True, starting_after=last + 1)


async def test_a_running_stream_is_attached_again_from_what_was(
    rig: Any, client: AsyncOpenAI
) -> None:
    rig.session.allow(5)
    first = await client.responses.create(model=MODEL, input="Hi", background=True, stream=True)
    seen: list[Any] = []
    async for event in first:
        seen.append(event)
        if event.sequence_number == 7:
            break
    await first.close()
    rig.session.allow(None)
    rest = await client.responses.retrieve(
        seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
    )
    seen += [event async for event in rest]
    assert [event.sequence_number for event in seen] == list(range(22))
    text = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
    assert text == "All is well."


async def test_a_background_response_ignores_that_its_reader_goes(
    rig: Any, client: AsyncOpenAI
) -> None:
    rig.session.allow(1)
    stream = await client.responses.create(model=MODEL, input="Hi", background=True, stream=True)
    first = await anext(aiter(stream))
    assert first.type == "response.created"
    await stream.close()
    rig.session.allow(None)
    while (polled := await client.responses.retrieve(first.response.id)).status != "completed":
        pass
    assert polled.output_text == "All is well."


async def test_a_background_response_is_cancelled(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.allow(4)
    stream = await client.responses.create(model=MODEL, input="Hi", background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.sequence_number == 8:
            cancelled = await client.responses.cancel(seen[0].response.id)
            assert (cancelled.status, cancelled.output_text) == ("cancelled", "All ")
    assert (seen[-1].type, seen[-1].response.status) == ("response.incomplete", "cancelled")
    again = await client.responses.cancel(seen[0].response.id)
    assert again == await client.responses.retrieve(again.id)


async def test_a_foreground_response_cannot_be_cancelled(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="Hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(made.id)


async def test_a_deleted_response_is_gone(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.allow(1)
    made = await client.responses.create(model=MODEL, input="Hi", background=True)
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    assert rig.session.kept == []


async def test_a_response_that_is_not_stored_is_gone_after_its_end(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="Hi", store=False)
    assert made.output_text == "All is well."
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(model=MODEL, input="Hi", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"


async def test_the_length_of_a_prompt_is_told_beforehand(client: AsyncOpenAI) -> None:
    counted = await client.responses.input_tokens.count(
        model=MODEL, input="Hi", instructions="Be kind."
    )
    made = await client.responses.create(model=MODEL, input="Hi", instructions="Be kind.")
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


async def test_input_items_are_listed(client: AsyncOpenAI) -> None:
    items: Any = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
    ]
    made = await client.responses.create(model=MODEL, input=items)
    listed = [item async for item in client.responses.input_items.list(made.id, order="asc")]
    assert [item.type for item in listed] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]
    paged = [item async for item in client.responses.input_items.list(made.id, limit=1)]
    assert paged == listed[::-1]


async def test_truncation_leaves_out_the_oldest(serve: Any, talker: Any) -> None:
    async with serve(talker(context_length=80)) as rig:
        rig.session.reply = say_prompt
        items: Any = [
            {"role": "system", "content": "keep"},
            {"role": "user", "content": "x" * 80},
            {"role": "user", "content": "last"},
        ]
        made = await rig.client.responses.create(model=MODEL, input=items, truncation="auto")
        assert made.output_text.startswith("<system: keep|user: last|assistant:>")
        assert made.truncation == "auto"
        with pytest.raises(openai.BadRequestError) as caught:
            await rig.client.responses.create(model=MODEL, input=items)
        assert caught.value.code == "context_length_exceeded"


async def test_calls_of_tools_are_items_and_their_answers_input(
    rig: Any, client: AsyncOpenAI
) -> None:
    rig.session.reply = lambda _: 'Hm.<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    tools: Any = [{"type": "function", "name": "look", "parameters": {}, "strict": False}]
    stream = await client.responses.create(model=MODEL, input="Hi", tools=tools, stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert done.arguments == "{}"
    last = events[-1]
    assert last.type == "response.completed"
    call = last.response.output[1]
    assert call.type == "function_call"
    again = await client.responses.retrieve(last.response.id, stream=True)
    assert [event async for event in again] == events
    rig.session.reply = say_prompt
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    after = await client.responses.create(
        model=MODEL, input=[answer], previous_response_id=last.response.id
    )
    assert after.output_text == "<user: Hi|assistant: Hm.|tool: 42|assistant:>"


# -- conversations --


async def test_a_conversation_is_made_changed_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(
        metadata={"a": "1"}, items=[{"role": "user", "content": "hello"}]
    )
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"b": "2"})
    assert changed.metadata == {"b": "2"}
    deleted = await client.conversations.delete(made.id)
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_items_are_added_read_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    added = await client.conversations.items.create(
        made.id,
        items=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    )
    first, second = added.data
    read = await client.conversations.items.retrieve(first.id or "", conversation_id=made.id)
    assert read == first
    await client.conversations.items.delete(first.id or "", conversation_id=made.id)
    listed = [item async for item in client.conversations.items.list(made.id)]
    assert listed == [second]
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(first.id or "", conversation_id=made.id)


async def test_responses_read_and_extend_their_conversation(rig: Any, client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[{"role": "system", "content": "be kind"}])
    first = await client.responses.create(model=MODEL, input="1", conversation=made.id)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    rig.session.reply = say_prompt
    second = await client.responses.create(model=MODEL, input="2", conversation={"id": made.id})
    prompt = "system: be kind|user: 1|assistant: All is well.|user: 2|assistant:"
    assert second.output_text == f"<{prompt}>"
    listed = client.conversations.items.list(made.id, order="asc")
    said: list[Any] = [item async for item in listed]
    assert [(item.role, item.content[0].text) for item in said] == [
        ("system", "be kind"),
        ("user", "1"),
        ("assistant", "All is well."),
        ("user", "2"),
        ("assistant", f"<{prompt}>"),
    ]


async def test_a_chain_goes_on_from_a_conversation(rig: Any, client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    first = await client.responses.create(model=MODEL, input="1", conversation=made.id)
    await client.responses.create(model=MODEL, input="2", conversation=made.id)
    rig.session.reply = say_prompt
    branch = await client.responses.create(model=MODEL, input="3", previous_response_id=first.id)
    assert branch.output_text == "<user: 1|assistant: All is well.|user: 3|assistant:>"


async def test_a_conversation_answers_one_at_a_time(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.allow(1)
    made = await client.conversations.create()
    await client.responses.create(model=MODEL, input="1", conversation=made.id, background=True)
    with pytest.raises(openai.ConflictError) as caught:
        await client.responses.create(model=MODEL, input="2", conversation=made.id)
    assert caught.value.code == "conversation_locked"


async def test_a_cancelled_turn_does_not_join_its_conversation(
    rig: Any, client: AsyncOpenAI
) -> None:
    rig.session.allow(1)
    made = await client.conversations.create()
    turn = await client.responses.create(
        model=MODEL, input="1", conversation=made.id, background=True
    )
    await client.responses.cancel(turn.id)
    assert [item async for item in client.conversations.items.list(made.id)] == []


async def test_the_oldest_ended_responses_make_room(serve: Any, talker: Any) -> None:
    async with serve(talker(), most_responses=3) as rig:
        create = rig.client.responses.create
        made = [(await create(model=MODEL, input=str(number))).id for number in range(5)]
        for name in made[:2]:
            with pytest.raises(openai.NotFoundError):
                await rig.client.responses.retrieve(name)
        for name in made[2:]:
            assert (await rig.client.responses.retrieve(name)).status == "completed"
