"""A pause cuts streams cleanly, and after it every event comes exactly once."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

MODEL = "bytes"
KEY = {"Authorization": "Bearer a-key"}


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in response.content:
        text = line.decode().strip()
        if text:
            yield text


async def read_until_cut(url: str, body: dict[str, Any], session: Any, *, at: int) -> list[str]:
    """All lines of a stream whose session is paused once `at` data lines have come."""
    saved: list[str] = []
    async with (
        aiohttp.ClientSession(headers=KEY) as http,
        http.post(url, json=body) as response,
    ):
        data = 0
        async for line in lines(response):
            saved.append(line)
            data += line.startswith("data:")
            if data == at and not session.pausing:
                session.saved = session.pause()
    return saved


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("at", [1, 5, 9])
async def test_a_stream_cut_by_a_pause_goes_on_in_the_next_process(
    serve: Any, talker: Any, *, background: bool, at: int
) -> None:
    session = talker()
    session.allow(6)
    body = {"model": MODEL, "input": "Hi", "stream": True, "background": background}
    async with serve(session) as rig:
        seen = await read_until_cut(f"{rig.url}/v1/responses", body, session, at=at)
    assert seen[-1] == ": paused"
    events = [json.loads(line[6:]) for line in seen if line.startswith("data: ")]
    async with serve(talker(session.saved)) as rig:
        rest = await rig.client.responses.retrieve(
            events[0]["response"]["id"], stream=True, starting_after=events[-1]["sequence_number"]
        )
        found = [event async for event in rest]
        numbers = [event["sequence_number"] for event in events]
        numbers += [event.sequence_number for event in found]
        assert numbers == list(range(len(numbers)))
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        deltas += [e.delta for e in found if e.type == "response.output_text.delta"]
        assert "".join(deltas) == "All is well."
        assert found[-1].type == "response.completed"


async def test_a_background_response_runs_on_by_itself(serve: Any, talker: Any) -> None:
    session = talker()
    async with serve(session) as rig:
        done = await rig.client.responses.create(model=MODEL, input="x", max_output_tokens=1)
        session.allow(3)
        conversation = await rig.client.conversations.create()
        made = await rig.client.responses.create(
            model=MODEL, input="Hi", background=True, conversation=conversation.id
        )
        saved = session.pause()
    async with serve(talker(saved)) as rig:
        while (polled := await rig.client.responses.retrieve(made.id)).status != "completed":
            pass
        assert polled.output_text == "All is well."
        items = rig.client.conversations.items.list(conversation.id)
        assert len([item async for item in items]) == 2
        assert (await rig.client.responses.retrieve(done.id)).output_text == "A"
        assert rig.session.kept == []


async def test_a_chat_stream_ends_with_the_comment_and_no_final_chunk(
    serve: Any, talker: Any
) -> None:
    session = talker()
    session.allow(3)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with serve(session) as rig:
        seen = await read_until_cut(f"{rig.url}/v1/chat/completions", body, session, at=2)
    assert seen[-1] == ": paused"
    assert not any('finish_reason":"' in line or "[DONE]" in line for line in seen)
    assert [request.id[:9] for request, _ in session.saved.requests] == ["chatcmpl-"]


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("chat", [False, True])
async def test_a_cut_stream_of_one_choice_is_taken_up_again_by_its_id(
    serve: Any, talker: Any, *, at: int, chat: bool
) -> None:
    session = talker()
    session.allow(6)
    path = "/v1/chat/completions" if chat else "/v1/completions"
    prompt = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    body = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, **prompt}
    async with serve(session) as rig:
        seen = await read_until_cut(rig.url + path, body, session, at=at)
    before = [json.loads(line[6:]) for line in seen if line.startswith("data: ")]
    # the role comes with the first token, in a chunk of its own
    position = len(before) - 1 - chat
    async with serve(talker(session.saved)) as rig:
        url = f"{rig.url}{path}/{before[0]['id']}?stream=true&starting_after={position}"
        async with aiohttp.ClientSession(headers=KEY) as http, http.get(url) as response:
            rest = [line async for line in lines(response)]
        assert rig.session.kept == []
    assert rest[-1] == "data: [DONE]"
    after = [json.loads(line[6:]) for line in rest[:-1]]
    assert {chunk["id"] for chunk in after} == {before[0]["id"]}
    assert after[-1]["usage"]["completion_tokens"] == 13
    choices = [chunk["choices"][0] for chunk in [*before, *after[:-1]]]
    texts = [c["delta"].get("content", "") if chat else c["text"] for c in choices]
    assert "".join(texts) == "All is well."


async def test_whole_answers_that_nobody_can_ask_for_are_not_gone_on_with(
    serve: Any, talker: Any
) -> None:
    session = talker()
    session.allow(1)
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/responses": {"input": "x"},
    }
    async with serve(session) as rig, aiohttp.ClientSession(headers=KEY) as http:
        asked = [
            asyncio.ensure_future(http.post(rig.url + path, json={"model": MODEL, **body}))
            for path, body in bodies.items()
        ]
        await asyncio.to_thread(session.wait_until_running, len(bodies))
        saved = session.pause()
        for answer in asked:
            assert (await answer).status == 503
    async with serve(talker(saved)) as rig:
        assert rig.session.kept == []
        (document,) = rig.session.documents("response").values()
        assert document["ending"]["reason"] == "cancelled"


async def test_who_waits_for_a_whole_answer_is_told_to_come_again(serve: Any, talker: Any) -> None:
    session = talker()
    session.allow(1)
    async with (
        serve(session) as rig,
        aiohttp.ClientSession(headers=KEY) as http,
    ):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        asked = asyncio.ensure_future(http.post(f"{rig.url}/v1/chat/completions", json=body))
        await asyncio.to_thread(session.made_all)
        session.pause()
        async with await asked as response:
            answer = await response.json()
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    assert answer["error"]["code"] == "pausing"


async def test_a_response_lost_between_keeping_and_submitting_has_failed(
    serve: Any, talker: Any
) -> None:
    session = talker()
    session.allow(0)
    async with serve(session) as rig:
        made = await rig.client.responses.create(model=MODEL, input="Hi", background=True)
        saved = session.pause()
    saved.requests.clear()
    async with serve(talker(saved)) as rig:
        lost = await rig.client.responses.retrieve(made.id)
        assert lost.status == "failed"
        assert lost.error is not None
        assert "send it again" in lost.error.message


async def test_while_it_does_not_serve_clients_learn_the_reason(serve: Any, talker: Any) -> None:
    for reason in ("Loading", "Restoring", "Pausing", "EngineStalled"):
        session = talker()
        session.stalled = "the store"
        session.ready = reason
        async with serve(session) as rig, aiohttp.ClientSession() as http:
            with pytest.raises(openai.APIStatusError) as caught:
                await rig.client.models.list()
            assert caught.value.status_code == 503
            assert caught.value.code == reason.lower()
            assert caught.value.response.headers["Retry-After"] == "1"
            async with http.get(f"{rig.url}/readyz") as response:
                assert response.status == 503
                body = await response.json()
                assert body["reason"] == reason
                assert ("waits for the store" in body["message"]) is (reason == "EngineStalled")
            async with http.get(f"{rig.url}/healthz") as response:
                assert response.status == 200


@pytest.mark.parametrize("store", [True, False])
async def test_a_crash_after_any_write_loses_nothing_and_doubles_nothing(
    serve: Any, talker: Any, *, store: bool
) -> None:
    session = talker()
    async with serve(session) as rig:
        conversation = await rig.client.conversations.create()
        stream = await rig.client.responses.create(
            model=MODEL, input="1", conversation=conversation.id, stream=True, store=store
        )
        events = [event async for event in stream]
        name = events[0].response.id
        moments = list(session.moments)
    assert len(moments) >= 6
    for moment in moments:
        async with serve(talker(moment)) as rig:
            kept = rig.session.documents("response")
            if name in kept:
                stream = await rig.client.responses.retrieve(name, stream=True)
                last = [event async for event in stream][-1]
                # kept, but not yet submitted when the process died: it says so
                lost = not moment.requests and kept[name]["ending"]["reason"] == "failed"
                assert last.type == ("response.failed" if lost else "response.completed")
            else:
                lost = not any(name == request.id for request, _ in moment.requests)
            items = [i async for i in rig.client.conversations.items.list(conversation.id)]
            assert len(items) in ((0, 2) if lost else (2,))
            assert len({item.id for item in items}) == len(items)
            assert rig.session.kept == []
