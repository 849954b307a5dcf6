"""What is wrong is refused with a status, the field's name and a code that clients know."""

import asyncio
import json
import logging
from typing import Any, TypeAlias

import aiohttp
import openai
import pytest
from sojourn_runtime.context.errors import ContextError, StaleEpoch, StoreFull, StoreUnwritable

KEY = {"Authorization": "Bearer a-key"}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
CONVERSATIONS = "/v1/conversations"
USER = {"role": "user", "content": "x"}
PART = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "bytes", "messages": [USER]} | fields


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "bytes", "prompt": "x"} | fields


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "bytes", "input": "x"} | fields


def says(**message: Any) -> dict[str, Any]:
    return chat(messages=[message])


def parts(*content: Any) -> dict[str, Any]:
    return says(role="user", content=list(content))


SCHEMA = {"name": "n", "schema": {"type": "impossible"}}
FORM = {"type": "json_schema", "json_schema": SCHEMA}
NAMED = {"type": "function", "function": {"name": "g"}}
ANY = {"type": "json_object"}
TOOL = {"type": "function", "function": {"name": "f"}}

WRONG: list[tuple[str, Any, int, str | None]] = [
    (CHAT, {"messages": [USER]}, 400, "model"),
    (CHAT, chat(model=3), 400, "model"),
    (CHAT, chat(model="gpt"), 404, "model"),
    (CHAT, {"model": "bytes"}, 400, "messages"),
    (CHAT, chat(messages=[]), 400, "messages"),
    (CHAT, chat(messages="x"), 400, "messages"),
    (CHAT, chat(messages=["x"]), 400, "messages[0]"),
    (CHAT, says(content="x"), 400, "messages[0].role"),
    (CHAT, says(role="king", content="x"), 400, "messages[0].role"),
    (CHAT, says(role="function", name="f", content="x"), 501, "messages[0].role"),
    (CHAT, says(role="user"), 400, "messages[0].content"),
    (CHAT, says(role="user", content=3), 400, "messages[0].content"),
    (CHAT, says(role="user", content="x", mood="good"), 400, "messages[0].mood"),
    (CHAT, says(role="tool", content="x"), 400, "messages[0].tool_call_id"),
    (CHAT, says(role="assistant"), 400, "messages[0].content"),
    (CHAT, says(role="assistant", content="x"), 400, "messages"),
    (CHAT, parts("x"), 400, "messages[0].content[0]"),
    (CHAT, parts({"type": "text"}), 400, "messages[0].content[0].text"),
    (CHAT, parts({"type": "smell"}), 400, "messages[0].content[0].type"),
    (CHAT, parts(PART), 501, "messages[0].content[0].type"),
    (CHAT, chat(temperature="hot"), 400, "temperature"),
    (CHAT, chat(temperature=2.5), 400, "temperature"),
    (CHAT, chat(temperature=True), 400, "temperature"),
    (CHAT, chat(top_p=1.1), 400, "top_p"),
    (CHAT, chat(top_k=1.5), 400, "top_k"),
    (CHAT, chat(min_p=-1), 400, "min_p"),
    (CHAT, chat(presence_penalty=3), 400, "presence_penalty"),
    (CHAT, chat(frequency_penalty=-3), 400, "frequency_penalty"),
    (CHAT, chat(repetition_penalty=0), 400, "repetition_penalty"),
    (CHAT, chat(max_tokens=0), 400, "max_tokens"),
    (CHAT, chat(max_tokens=10**9), 400, "max_tokens"),
    (CHAT, chat(max_completion_tokens="many"), 400, "max_completion_tokens"),
    (CHAT, chat(n=0), 400, "n"),
    (CHAT, chat(n=1000), 400, "n"),
    (CHAT, chat(seed=1.5), 400, "seed"),
    (CHAT, chat(seed=2**70), 400, "seed"),
    (CHAT, chat(stop=[""]), 400, "stop"),
    (CHAT, chat(stop=3), 400, "stop"),
    (CHAT, chat(stop=["x"] * 17), 400, "stop"),
    (CHAT, chat(stream="yes"), 400, "stream"),
    (CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
    (CHAT, chat(stream=True, stream_options={"x": 1}), 400, "stream_options.x"),
    (CHAT, chat(top_logprobs=2), 400, "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
    (CHAT, chat(logit_bias={"x": 1}), 400, "logit_bias"),
    (CHAT, chat(logit_bias={"9999": 1}), 400, "logit_bias"),
    (CHAT, chat(logit_bias={"5": 200}), 400, "logit_bias.5"),
    (CHAT, chat(response_format=FORM), 400, "response_format"),
    (CHAT, chat(response_format={}), 400, "response_format.type"),
    (CHAT, chat(response_format={"type": "json_schema"}), 400, "response_format.json_schema"),
    (
        CHAT,
        chat(response_format={"type": "json_schema", "json_schema": {"name": "n"}}),
        400,
        "response_format.json_schema.schema",
    ),
    (CHAT, chat(response_format={"type": "poem"}), 400, "response_format.type"),
    (CHAT, chat(tools=[{"type": "browser"}]), 501, "tools[0].type"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools[0].function"),
    (CHAT, chat(tools=[TOOL], tool_choice="sometimes"), 400, "tool_choice"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice"),
    (CHAT, chat(tools=[TOOL], tool_choice={"type": "custom"}), 501, "tool_choice.type"),
    (CHAT, chat(tools=[TOOL], tool_choice=NAMED), 400, "tool_choice"),
    (CHAT, chat(tools=[TOOL], tool_choice="required", response_format=ANY), 400, "tool_choice"),
    (CHAT, chat(modalities=["text", "audio"]), 501, "modalities"),
    (CHAT, chat(functions=[{"name": "f"}]), 501, "functions"),
    (CHAT, chat(temprature=1), 400, "temprature"),
    (CHAT, chat(messages=[{"role": "user", "content": "x" * 5000}]), 400, "messages"),
    (TEXT, text(prompt=None), 400, "prompt"),
    (TEXT, text(prompt=""), 400, "prompt"),
    (TEXT, text(prompt=[]), 400, "prompt"),
    (TEXT, text(prompt=[1, 99999]), 400, "prompt[1]"),
    (TEXT, text(prompt=[[1], ["x"]]), 400, "prompt[1][0]"),
    (TEXT, text(prompt=[{}]), 400, "prompt[0]"),
    (TEXT, text(suffix="y"), 501, "suffix"),
    (TEXT, text(best_of=3), 501, "best_of"),
    (TEXT, text(logprobs=True), 400, "logprobs"),
    (TEXT, text(echo=True, logprobs=1), 501, "echo"),
    (RESPONSES, {"model": "bytes"}, 400, "input"),
    (RESPONSES, ask(input=[]), 400, "input"),
    (RESPONSES, ask(input=[{"role": "x", "content": "y"}]), 400, "input[0].role"),
    (RESPONSES, ask(input=[{"type": "reasoning"}]), 501, "input[0].type"),
    (RESPONSES, ask(instructions=3), 400, "instructions"),
    (RESPONSES, ask(previous_response_id="resp_none"), 404, "previous_response_id"),
    (RESPONSES, ask(conversation="conv_none"), 404, "conversation"),
    (RESPONSES, ask(conversation={"id": 3}), 400, "conversation.id"),
    (RESPONSES, ask(conversation="c", previous_response_id="r"), 400, "previous_response_id"),
    (RESPONSES, ask(background=True, store=False), 400, "background"),
    (RESPONSES, ask(truncation="some"), 400, "truncation"),
    (RESPONSES, ask(max_output_tokens=0), 400, "max_output_tokens"),
    (RESPONSES, ask(metadata={"k": 1}), 400, "metadata.k"),
    (RESPONSES, ask(text={"format": {"type": "json_schema", **SCHEMA}}), 400, "text.format"),
    (RESPONSES, ask(text={"format": {"type": "json_schema"}}), 400, "text.format.name"),
    (f"{RESPONSES}/input_tokens", {"model": "bytes"}, 400, "input"),
    (RESPONSES, ask(tools=[{"type": "web_search"}]), 501, "tools[0].type"),
    (RESPONSES, ask(prompt={"id": "p"}), 501, "prompt"),
    (RESPONSES, ask(include=["message.output_text.logprobs"]), 501, "include"),
    (RESPONSES, ask(top_logprobs=2), 501, "top_logprobs"),
    (RESPONSES, ask(unheard=1), 400, "unheard"),
    (CONVERSATIONS, {"items": [{"type": "x"}]}, 501, "items[0].type"),
    (CONVERSATIONS, {"items": [USER] * 21}, 400, "items"),
    (CONVERSATIONS, {"metadata": []}, 400, "metadata"),
    (f"{CONVERSATIONS}/conv_none", {"metadata": {}}, 404, None),
    (f"{CONVERSATIONS}/conv_none/items", {"items": [USER]}, 404, None),
    (f"{RESPONSES}/resp_none/cancel", {}, 404, None),
    ("/v1/embeddings", {"input": "x"}, 501, None),
    ("/v1/images/generations", {}, 501, None),
    ("/v1/audio/speech", {}, 501, None),
    ("/v1/files", {}, 501, None),
    ("/v1/moderations", {}, 501, None),
    ("/v1/responses/compact", {}, 501, None),
    ("/v1/nothing", {}, 404, None),
    ("/v1/models", {}, 405, None),
]


async def test_every_wrong_request_is_answered_by_name(rig: Any) -> None:
    async with aiohttp.ClientSession(headers=KEY) as http:
        for path, body, status, param in WRONG:
            async with http.post(rig.url + path, json=body) as response:
                error = (await response.json())["error"]
                said = (path, body, response.status, error)
                assert response.status == status, said
                assert error["param"] == param, said
                assert set(error) == {"message", "type", "param", "code"}, said
                assert param is None or param in error["message"] or status != 400, said
    assert rig.session.kept == []


GETS = [
    ("/v1/responses/resp_none", 404, None),
    ("/v1/responses/resp_none/input_items", 404, None),
    ("/v1/conversations/conv_none", 404, None),
    ("/v1/conversations/conv_none/items/x", 404, None),
    ("/v1/responses/resp_none?stream=maybe", 400, "stream"),
    ("/v1/responses/resp_none?starting_after=3", 400, "starting_after"),
    ("/v1/responses/resp_none?stream=true&starting_after=x", 400, "starting_after"),
    ("/v1/chat/completions/chatcmpl-1", 400, "stream"),
    ("/v1/chat/completions/chatcmpl-1?stream=true", 404, None),
    ("/v1/chat/completions/chatcmpl-1/messages", 501, None),
    ("/v1/vector_stores/vs_1/files", 501, None),
]


@pytest.mark.parametrize(("path", "status", "param"), GETS)
async def test_wrong_addresses_are_answered_by_name(
    rig: Any, path: str, status: int, param: str | None
) -> None:
    async with aiohttp.ClientSession(headers=KEY) as http, http.get(rig.url + path) as response:
        error = (await response.json())["error"]
        assert (response.status, error["param"]) == (status, param)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"model":"bytes","messages":[{"role":"user","content":"\\ud800"}]}', 400, None),
        (json.dumps(chat(user="x" * 300_000)).encode(), 413, "request_too_large"),
    ],
)
async def test_bodies_that_are_no_request_are_refused(
    rig: Any, body: bytes, status: int, code: str | None
) -> None:
    async with (
        aiohttp.ClientSession(headers=KEY) as http,
        http.post(rig.url + CHAT, data=body) as response,
    ):
        error = (await response.json())["error"]
        assert response.status == status
        assert code is None or error["code"] == code


@pytest.mark.parametrize("key", [None, "Bearer wrong", "Bearer ", "Basic a-key", "Bearer \udcff"])
async def test_without_the_key_nothing_of_the_api_is_there(rig: Any, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": key}
    async with aiohttp.ClientSession(headers=headers) as http:
        for path in ("/v1/models", "/v1/nothing", "/v1/responses/resp_1"):
            async with http.get(rig.url + path) as response:
                assert response.status == 401
                assert (await response.json())["error"]["code"] == "invalid_api_key"
        for path in ("/healthz", "/readyz", "/metrics", "/sojourn/v1/status"):
            async with http.get(rig.url + path) as response:
                assert response.status == 200


Said: TypeAlias = tuple[int, str, str]
"""Status, code, and words of the remedy."""
FAULTS: list[tuple[ContextError, Said]] = [
    (StoreFull("file:///store/journal-1-1.log: no space left"), (507, "store_full", "make room")),
    (StaleEpoch("file:///store: another start"), (503, "stale_epoch", "at its address")),
    (StoreUnwritable("file:///store: cannot append"), (503, "store_unwritable", "Mend it")),
]
every_fault = pytest.mark.parametrize(("fault", "said"), FAULTS)


@every_fault
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (RESPONSES, ask())])
async def test_a_request_that_the_store_cannot_keep_is_refused_with_its_remedy(
    rig: Any, path: str, body: Any, fault: ContextError, said: Said
) -> None:
    rig.session.refuse = fault
    await _told(rig, path, body, said)


@every_fault
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (RESPONSES, ask())])
async def test_an_answer_that_the_store_ends_says_so(
    rig: Any, path: str, body: Any, fault: ContextError, said: Said
) -> None:
    rig.session.allow(1)
    answer = asyncio.create_task(_told(rig, path, body, said))
    await asyncio.to_thread(rig.session.made_all)
    rig.session.fail(fault)
    await answer


async def test_a_stream_that_a_full_store_ends_says_so(rig: Any) -> None:
    rig.session.allow(1)
    stream = await rig.client.chat.completions.create(**chat(stream=True))
    await anext(stream)
    rig.session.fail(StoreFull("file:///store: no space left"))
    with pytest.raises(openai.APIError, match="make room") as told:
        await stream_end(stream)
    assert told.value.code == "store_full"


async def stream_end(stream: Any) -> None:
    async for _ in stream:
        pass


async def _told(rig: Any, path: str, body: Any, said: Said) -> None:
    """An error in OpenAI's form, with no path of the server's and no trace of its code."""
    status, code, remedy = said
    async with (
        aiohttp.ClientSession(headers=KEY) as http,
        http.post(rig.url + path, json=body) as response,
    ):
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["type"]) == (status, code, "server_error")
        assert remedy in error["message"]
        assert "file://" not in error["message"]
        assert "Traceback" not in error["message"]
        assert (status == 503) == ("Retry-After" in response.headers)


@pytest.mark.parametrize("line", [b"Authorization: Bearer a-\x00key", b"Authorization a-key"])
async def test_a_key_in_a_request_that_cannot_be_read_is_not_logged(
    rig: Any, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    assert "a request cannot be read (400)" in caplog.text
    assert "key" not in caplog.text
    assert "Bearer" not in caplog.text


async def test_what_is_not_there_is_not_asked_for_twice(rig: Any) -> None:
    async with (
        aiohttp.ClientSession(headers=KEY) as http,
        http.post(f"{rig.url}/v1/embeddings", json={}) as response,
    ):
        assert response.headers["x-should-retry"] == "false"
        assert "embeddings" in (await response.json())["error"]["message"]
