"""Chat completions and completions, driven by OpenAI's own client."""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

USER: Any = [{"role": "user", "content": "How are things?"}]


@pytest.fixture
def client(rig: Any) -> AsyncOpenAI:
    found: AsyncOpenAI = rig.client
    return found


async def test_an_answer_comes_whole(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="bytes", messages=USER)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("All is well.", "stop")
    assert answer.usage is not None
    # twelve letters and the token that ends the text
    assert answer.usage.completion_tokens == 13
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 13


async def test_a_stream_has_one_chunk_per_token_and_usage_when_asked(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="bytes", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks[1:-2]]
    assert texts == [*"All is well.", ""]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage and chunks[-1].usage.completion_tokens) == ([], 13)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_half_characters_are_never_sent(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.reply = lambda _: "Grüße 🎉"
    stream = await client.chat.completions.create(model="bytes", messages=USER, stream=True)
    texts = [c.choices[0].delta.content or "" async for c in stream]
    assert "".join(texts) == "Grüße 🎉"
    assert not any("\ufffd" in text for text in texts)


async def test_several_choices_come_interleaved_and_apart(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.reply = lambda request: f"choice {request.params.choice}"
    answer = await client.chat.completions.create(model="bytes", messages=USER, n=3)
    whole = [choice.message.content for choice in answer.choices]
    assert whole == ["choice 0", "choice 1", "choice 2"]
    stream = await client.chat.completions.create(model="bytes", messages=USER, n=3, stream=True)
    texts = ["", "", ""]
    ended = set()
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ended.add(choice.index)
    assert (texts, ended) == (whole, {0, 1, 2})


async def test_a_stop_string_ends_the_text_before_itself(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="bytes", messages=USER, stop=[" we", "zz"])
    assert answer.choices[0].message.content == "All is"
    assert answer.choices[0].finish_reason == "stop"


async def test_a_limit_is_a_limit(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="bytes", messages=USER, max_completion_tokens=3
    )
    assert answer.choices[0].message.content == "All"
    assert answer.choices[0].finish_reason == "length"


async def test_log_probabilities_come_per_token(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="bytes", messages=USER, logprobs=True, top_logprobs=2, max_tokens=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token, entry.logprob, entry.bytes) for entry in logprobs.content] == [
        ("A", -0.25, [65]),
        ("l", -0.25, [108]),
    ]
    assert [top.token for top in logprobs.content[0].top_logprobs] == ["A", "B"]


async def test_log_probabilities_come_with_each_token_of_a_stream(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="bytes", messages=USER, logprobs=True, top_logprobs=1, max_tokens=3, stream=True
    )
    told = []
    async for chunk in stream:
        (choice,) = chunk.choices
        if choice.logprobs is not None and choice.logprobs.content is not None:
            (entry,) = choice.logprobs.content
            assert choice.delta.content == entry.token
            told.append((entry.token, entry.logprob, [top.token for top in entry.top_logprobs]))
    assert told == [(letter, -0.25, ["A"]) for letter in "All"]


async def test_cached_tokens_are_told_with_where_they_were(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.cached = 4
    answer = await client.chat.completions.create(model="bytes", messages=USER)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    found = answer.usage.prompt_tokens_details.to_dict()
    assert found == {"cached_tokens": 4, "device": 1, "host": 3, "store": 0}


async def test_parts_turns_and_tools_reach_the_template(rig: Any, client: AsyncOpenAI) -> None:
    def say_prompt(request: Any) -> str:
        return bytes(request.prompt).decode()

    rig.session.reply = say_prompt
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = await client.chat.completions.create(model="bytes", messages=messages, tools=tools)
    assert answer.choices[0].message.content == (
        "tools: 1\nsystem: Be brief.\nuser: ab\nassistant: \ntool: 42\nassistant:"
    )


CALLING = 'One moment.<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


async def test_calls_of_tools_are_told_apart_from_text(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.reply = lambda _: CALLING
    answer = await client.chat.completions.create(model="bytes", messages=USER, tools=TOOLS)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment.")
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("look", '{"at": 1}')
    stream = await client.chat.completions.create(
        model="bytes", messages=USER, tools=TOOLS, stream=True
    )
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "One moment."
    (told,) = [chunk.delta.tool_calls for chunk in chunks if chunk.delta.tool_calls]
    assert told[0].function is not None
    assert (told[0].index, told[0].function.arguments) == (0, '{"at": 1}')
    assert chunks[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "one"),
    [("required", False), ({"type": "function", "function": {"name": "look"}}, True)],
)
async def test_a_call_can_be_demanded(
    rig: Any, client: AsyncOpenAI, *, choice: Any, one: bool
) -> None:
    seen: list[Any] = []

    def note(request: Any) -> str:
        seen.append(request)
        return CALLING

    rig.session.reply = note
    await client.chat.completions.create(
        model="bytes", messages=USER, tools=TOOLS, tool_choice=choice
    )
    assert json.loads(seen[0].params.grammar) == {"calls": {"look": {}}, "one": one}


async def test_without_tools_their_marks_are_text(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.reply = lambda _: CALLING
    answer = await client.chat.completions.create(model="bytes", messages=USER)
    assert answer.choices[0].message.content == CALLING


async def test_what_openai_knows_and_nothing_depends_on_is_accepted(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="bytes",
        messages=USER,
        user="u",
        metadata={"k": "v"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        extra_body={"priority": 3, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
    )
    assert answer.choices[0].finish_reason == "stop"


async def test_sampling_reaches_the_engine(rig: Any, client: AsyncOpenAI) -> None:
    seen: list[Any] = []

    def note(request: Any) -> str:
        seen.append(request)
        return "x"

    rig.session.reply = note
    await client.chat.completions.create(
        model="bytes",
        messages=USER,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={"65": 5},
        extra_body={"top_k": 5, "min_p": 0.1, "priority": 3},
    )
    params = seen[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 5, 0.1)
    assert (params.seed, params.presence_penalty, params.frequency_penalty) == (7, 0.1, 0.2)
    assert params.logit_bias == ((65, 5.0),)
    assert seen[0].priority == 3


async def test_nothing_is_kept_of_an_answered_call(rig: Any, client: AsyncOpenAI) -> None:
    await client.chat.completions.create(model="bytes", messages=USER, n=2)
    stream = await client.chat.completions.create(model="bytes", messages=USER, stream=True)
    assert [chunk async for chunk in stream]
    assert rig.session.kept == []


async def test_completions_answer_prompts_of_every_form(client: AsyncOpenAI) -> None:
    forms: list[Any] = ["a", ["a"], [97], [[97]]]
    for prompt in forms:
        answer = await client.completions.create(model="bytes", prompt=prompt)
        assert answer.choices[0].text == "All is well."


async def test_completions_of_several_prompts_echo_and_log(rig: Any, client: AsyncOpenAI) -> None:
    rig.session.reply = lambda request: bytes(request.prompt).decode().upper()
    answer = await client.completions.create(
        model="bytes", prompt=["ab", "cd"], n=2, echo=True, extra_body={"best_of": 2}
    )
    texts = [choice.text for choice in answer.choices]
    assert texts == ["abAB", "abAB", "cdCD", "cdCD"]
    logged = await client.completions.create(model="bytes", prompt="ab", logprobs=1, max_tokens=2)
    logprobs = logged.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.text_offset) == (["A", "B"], [0, 1])
    assert logprobs.top_logprobs == [{"A": -0.5}, {"A": -0.5}]


async def test_completions_stream(client: AsyncOpenAI) -> None:
    # OpenAI's own chunks have a null finish_reason until the last, which its type does not know
    lenient = client.copy()
    lenient._strict_response_validation = False
    stream = await lenient.completions.create(
        model="bytes",
        prompt="ab",
        echo=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].text for chunk in chunks[:-1])
    assert text == "abAll is well."
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


async def test_models_are_listed_and_named(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["bytes"]
    assert (await client.models.retrieve("bytes")).owned_by == "sojourn"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"
