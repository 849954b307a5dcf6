"""The server over a real session and a real model: what a user of SmolLM2 sees."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from sojourn_runtime.opening import open_model
from sojourn_runtime.server.app import Server
from sojourn_runtime.session import Config, Ending, Session
from sojourn_runtime.settings import parse_settings

NAME = "smollm2"
USER: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
FIXED: Any = {"temperature": 0.8, "max_output_tokens": 60, "extra_body": {"seed": 3}}

pytestmark = pytest.mark.timeout(300)

Opened = tuple[AsyncOpenAI, Session]
Open = Callable[[], AbstractAsyncContextManager[Opened]]


@pytest.fixture
def opened(model_file: Path, tmp_path: Path) -> Open:
    """Opens a session on the test's folder and serves it; leaving pauses it."""
    settings = parse_settings(["--model", str(model_file), "--context-length", "1024"], {})

    @asynccontextmanager
    async def start() -> AsyncIterator[Opened]:
        serving, over = threading.Event(), threading.Event()
        endings: list[Ending] = []

        def ended(ending: Ending) -> None:
            endings.append(ending)
            serving.set()
            over.set()

        config = Config(name="real", model_name=NAME, store=(tmp_path / "store").as_uri())
        session = Session(
            config, open_model=lambda: open_model(settings), ended=ended, serving=serving.set
        )
        server = Server(session)
        await server.start(host="127.0.0.1", port=0)
        session.start()
        await asyncio.to_thread(serving.wait, 120)
        assert endings == []
        server.adopt()
        url = f"http://127.0.0.1:{server.port}/v1"
        async with AsyncOpenAI(
            base_url=url, api_key="any", max_retries=0, _strict_response_validation=True
        ) as client:
            yield client, session
            session.pause()
            await asyncio.to_thread(over.wait, 60)
        await server.stop()
        assert [ending.paused for ending in endings] == [True]

    return start


async def test_it_answers_streams_and_finds_what_it_has_read_before(opened: Open) -> None:
    async with opened() as (client, _):
        whole = await client.chat.completions.create(
            model=NAME, messages=USER, temperature=0, max_tokens=20
        )
        assert "Tokyo" in (whole.choices[0].message.content or "")
        assert whole.choices[0].finish_reason == "stop"
        stream = await client.chat.completions.create(
            model=NAME,
            messages=USER,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
        assert text == whole.choices[0].message.content
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert (usage.prompt_tokens_details.cached_tokens or 0) > 0


async def test_choices_differ_by_number_and_repeat_by_seed(opened: Open) -> None:
    async with opened() as (client, _):
        asked: Any = {"model": NAME, "messages": USER, "n": 3, "max_tokens": 12, "seed": 5}
        first = await client.chat.completions.create(**asked)
        again = await client.chat.completions.create(**asked)
        texts = [choice.message.content for choice in first.choices]
        assert len(set(texts)) > 1
        assert [choice.message.content for choice in again.choices] == texts
        stopped = await client.chat.completions.create(
            model=NAME, messages=USER, temperature=0, stop=["Tokyo"]
        )
        assert stopped.choices[0].message.content == "The capital of Japan is "
        assert stopped.choices[0].finish_reason == "stop"


async def test_a_conversation_goes_on_after_a_pause_as_without_one(opened: Open) -> None:
    async with opened() as (client, session):
        conversation = await client.conversations.create()
        await client.responses.create(
            model=NAME, input="My name is Ada.", conversation=conversation.id, **FIXED
        )
        asked: Any = {"model": NAME, "input": "Tell me a story."} | FIXED
        told = await client.responses.create(**asked)
        running = await client.responses.create(**asked, background=True, stream=True)
        seen: list[Any] = []
        async for event in running:
            seen.append(event)
            if event.sequence_number == 20:
                session.pause()
    assert seen[-1].type == "response.output_text.delta"
    async with opened() as (client, _):
        rest = await client.responses.retrieve(
            seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
        )
        seen += [event async for event in rest]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        text = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
        assert text == told.output_text
        assert (await client.responses.retrieve(told.id)).output_text == told.output_text
        items = [item async for item in client.conversations.items.list(conversation.id)]
        assert len(items) == 2
        after = await client.responses.create(
            model=NAME, input="What is my name?", conversation=conversation.id, **FIXED
        )
        assert after.usage is not None
        assert after.usage.input_tokens_details.cached_tokens > 0


class City(BaseModel):
    """What the model is asked for."""

    name: str = Field(max_length=20)
    country: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=99_999_999)
    is_capital: bool


async def test_output_has_the_form_that_was_asked_for(opened: Open) -> None:
    async with opened() as (client, _):
        asked = await client.chat.completions.parse(
            model=NAME, messages=USER, response_format=City, temperature=1.5, seed=1
        )
        assert isinstance(asked.choices[0].message.parsed, City)
        made = await client.responses.parse(
            model=NAME, input="Describe Paris.", text_format=City, temperature=0
        )
        assert isinstance(made.output_parsed, City)
        free = await client.chat.completions.create(
            model=NAME,
            messages=USER,
            response_format={"type": "json_object"},
            temperature=0,
            max_tokens=200,
        )
        if free.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(free.choices[0].message.content or ""), dict)
        with pytest.raises(openai.BadRequestError, match="cannot be followed"):
            await client.chat.completions.create(
                model=NAME,
                messages=USER,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "strange"}},
                },
            )


async def test_output_keeps_its_form_across_a_pause(opened: Open) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": City.model_json_schema()}}
    asked: Any = {"model": NAME, "input": "Describe Paris.", "text": form, **FIXED}
    async with opened() as (client, session):
        whole = await client.responses.create(**asked)
        running = await client.responses.create(**asked, background=True, stream=True)
        seen: list[Any] = []
        async for event in running:
            seen.append(event)
            if event.sequence_number == 12:
                session.pause()
    async with opened() as (client, _):
        last = seen[-1].sequence_number
        rest = await client.responses.retrieve(
            seen[0].response.id, stream=True, starting_after=last
        )
        seen += [event async for event in rest]
    text = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
    assert text == whole.output_text


async def test_what_the_model_has_not_is_said(opened: Open) -> None:
    async with opened() as (client, _):
        tools: Any = [{"type": "function", "function": {"name": "f"}}]
        with pytest.raises(openai.APIStatusError, match="its chat template has none") as caught:
            await client.chat.completions.create(model=NAME, messages=USER, tools=tools)
        assert caught.value.status_code == 501
        with pytest.raises(openai.BadRequestError) as long:
            await client.completions.create(model=NAME, prompt="word " * 2000)
        assert long.value.code == "context_length_exceeded"
