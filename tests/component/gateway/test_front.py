"""What passes, what waits, what is refused, and what happens when either side goes away."""

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from gatewayrig import KEY, Front
from yarl import URL

NewFront = Callable[..., AbstractAsyncContextManager[Front]]
BODY = {"model": KEY, "input": "hello"}
BEARER = {"Authorization": "Bearer very-secret"}


async def die(request: web.Request) -> web.Response:
    """Of a session: the request has come, and no word of an answer goes back."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError


async def test_method_path_query_body_and_key_reach_the_session(front: NewFront) -> None:
    async with front() as rig:
        hop = {"Connection": "keep-alive, X-Hop", "X-Hop": "1", "X-Kept": "2", "TE": "trailers"}
        async with rig.http.post(
            URL(f"{rig.url}/v1/responses?a=%2F&b=c", encoded=True),
            json=BODY,
            headers=BEARER | hop,
        ) as answer:
            assert answer.status == 200
            assert await answer.json() == {"path": "/v1/responses?a=%2F&b=c", "method": "POST"}
            assert answer.headers["Server"] == "sojourn"
        (seen,) = rig.played.seen
        assert json.loads(rig.played.bodies[0]) == {"model": "smol", "input": "hello"}
        assert seen.headers["Authorization"] == "Bearer very-secret"
        assert seen.headers["X-Kept"] == "2"
        assert not {"X-Hop", "TE"} & set(seen.headers)
        assert seen.headers["Host"] in rig.played.url


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_every_endpoint_is_there_under_the_name_of_the_session(
    front: NewFront, method: str
) -> None:
    async with front() as rig:
        url = f"{rig.url}/{KEY}/v1/responses/resp_1/input_items?limit=2"
        async with rig.http.request(method, url) as answer:
            expected = {"path": "/v1/responses/resp_1/input_items?limit=2", "method": method}
            assert await answer.json() == expected


async def test_what_the_session_answers_is_passed_on(front: NewFront) -> None:
    async with front() as rig:

        async def refuse(_: web.Request) -> web.Response:
            headers = {"x-should-retry": "false", "Keep-Alive": "timeout=5"}
            return web.json_response({"error": {"code": "x"}}, status=501, headers=headers)

        rig.played.answer = refuse
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as answer:
            assert answer.status == 501
            assert answer.headers["x-should-retry"] == "false"
            assert "Keep-Alive" not in answer.headers
            assert await answer.json() == {"error": {"code": "x"}}


async def test_a_packed_body_reaches_the_session_unpacked(front: NewFront) -> None:
    async with front() as rig:
        packed = gzip.compress(json.dumps(BODY).encode())
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        url = f"{rig.url}/v1/responses"
        async with rig.http.post(url, data=packed, headers=headers) as answer:
            assert answer.status == 200
        assert json.loads(rig.played.bodies[0]) == {"model": "smol", "input": "hello"}
        assert "Content-Encoding" not in rig.played.seen[0].headers
        async with rig.http.post(url, data=b"plain", headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == "invalid_body"


async def test_a_fault_of_the_gateway_is_an_error_in_openai_s_form(
    front: NewFront, caplog: pytest.LogCaptureFixture
) -> None:
    async with front() as rig:
        rig.say(endpoint="http://[")
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY, headers=BEARER) as answer:
            assert answer.status == 500
            assert (await answer.json())["error"]["code"] == "internal_error"
    assert "very-secret" not in caplog.text


async def test_openai_clients_list_the_sessions(front: NewFront) -> None:
    async with (
        front() as rig,
        openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="k", max_retries=0) as client,
    ):
        rig.say(key="chats/two")
        assert [model.id async for model in client.models.list()] == [KEY, "chats/two"]
        assert (await client.models.retrieve(KEY)).id == KEY
        with pytest.raises(openai.NotFoundError, match="chats/three"):
            await client.models.retrieve("chats/three")
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model="chats/three", input="x")
        assert caught.value.code == "model_not_found"


async def test_before_the_sessions_are_read_none_is_called_unknown(front: NewFront) -> None:
    async with front() as rig:
        rig.directory.filled = False
        async with rig.http.get(f"{rig.url}/readyz") as answer:
            assert answer.status == 503
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0


async def test_a_request_waits_for_its_session_and_goes_on(front: NewFront) -> None:
    async with front() as rig:
        rig.paused()
        asked = asyncio.create_task(rig.http.post(f"{rig.url}/v1/responses", json=BODY))
        await rig.until(lambda: rig.lobby.held == 1, "held")
        rig.paused(reason="Starting")
        assert not asked.done()
        rig.ready()
        async with await asked as answer:
            assert answer.status == 200
        assert rig.lobby.held == 0
        assert rig.metric("held_seconds_count") == 1
        assert len(rig.played.seen) == 1


async def test_who_waited_in_vain_is_told_why_in_the_words_of_the_session(front: NewFront) -> None:
    async with front(hold_seconds=0.0) as rig:
        rig.paused()
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
            error = (await answer.json())["error"]
        assert error["code"] == "WaitingForRoom"
        assert "needs 12 slices" in error["message"]


async def test_a_session_without_a_listener_is_waited_for(front: NewFront) -> None:
    async with front() as rig:
        port = int(rig.played.url.rpartition(":")[2])
        await rig.played.stop()
        asked = asyncio.create_task(rig.http.post(f"{rig.url}/v1/responses", json=BODY))
        await rig.until(lambda: rig.lobby.held == 1, "held")
        await rig.played.start(port)
        async with await asked as answer:
            assert answer.status == 200


async def test_what_a_runtime_did_not_begin_is_sent_again_and_no_more(front: NewFront) -> None:
    async with front() as rig:
        codes = iter(["pausing", "restoring", "busy"])

        async def not_now(_: web.Request) -> web.Response:
            body = {"error": {"code": next(codes), "message": "later"}}
            return web.json_response(body, status=503, headers={"Retry-After": "1"})

        rig.played.answer = not_now
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "busy"
        assert len(rig.played.seen) == 3


async def test_what_a_session_may_have_begun_is_not_sent_again(front: NewFront) -> None:
    async with front() as rig:
        rig.played.answer = die
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as answer:
            assert answer.status == 502
            assert "not known" in (await answer.json())["error"]["message"]
        assert len(rig.played.seen) == 1


@pytest.mark.parametrize("bound", ["most_held", "most_held_per_session"])
async def test_requests_that_wait_are_bounded(front: NewFront, bound: str) -> None:
    async with front(**{bound: 1}) as rig:
        rig.paused()
        first = asyncio.create_task(rig.http.post(f"{rig.url}/v1/responses", json=BODY))
        await rig.until(lambda: rig.lobby.held == 1, "held")
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "gateway_full"
            assert int(answer.headers["Retry-After"]) > 0
        first.cancel()
        await rig.until(lambda: rig.lobby.held == 0, "let go")
        assert rig.played.seen == []


async def test_requests_under_way_are_bounded_and_open_streams_count(front: NewFront) -> None:
    async with front(most_open=1) as rig:
        rig.played.answer = endless
        async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as first:
            assert await first.content.readany()
            assert rig.metric("open") == 1
            async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as second:
                assert second.status == 503
                assert (await second.json())["error"]["code"] == "gateway_full"
                assert int(second.headers["Retry-After"]) > 0
            async with rig.http.get(f"{rig.url}/v1/models") as other:
                assert other.status == 200
            first.close()
        await rig.until(lambda: rig.metric("open") == 0, "closed")


async def test_a_sleeping_session_is_woken_by_a_request(front: NewFront) -> None:
    async with front() as rig:
        rig.paused(reason="Idle", asleep_since="2026-01-01T00:00:00Z")
        asked = asyncio.create_task(rig.http.post(f"{rig.url}/v1/responses", json=BODY))
        await rig.until(lambda: rig.woken, "woken")
        rig.say(asleep_since="")
        rig.ready()
        async with await asked as answer:
            assert answer.status == 200


async def test_bodies_are_bounded(front: NewFront) -> None:
    async with front(body_bytes=1000) as rig:
        async with rig.http.post(f"{rig.url}/v1/responses", data=b"x" * 1001) as answer:
            assert answer.status == 413
            assert (await answer.json())["error"]["code"] == "request_too_large"
        assert rig.played.seen == []
        assert rig.metric("body_bytes") == 0


async def test_bodies_of_waiting_requests_are_bounded_together(front: NewFront) -> None:
    async with front(body_bytes=1000, bodies_bytes=1500) as rig:
        rig.paused()
        body = BODY | {"input": "x" * 800}
        first = asyncio.create_task(rig.http.post(f"{rig.url}/v1/responses", json=body))
        await rig.until(lambda: rig.lobby.held == 1, "held")
        async with rig.http.post(f"{rig.url}/v1/responses", json=body) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "gateway_full"
            assert int(answer.headers["Retry-After"]) > 0
        rig.ready()
        async with await first as answer:
            assert answer.status == 200
        assert rig.metric("body_bytes") == 0


async def test_a_body_that_does_not_come_is_given_up(front: NewFront) -> None:
    async with front(body_seconds=0.05) as rig:
        host, port = rig.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert b"408" in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_goes_away_ends_its_request_at_the_session(front: NewFront) -> None:
    async with front() as rig:
        rig.played.answer = endless
        async with rig.http.post(f"{rig.url}/v1/chat/completions", json=BODY) as answer:
            assert await answer.content.readany()
            answer.close()
        await asyncio.wait_for(rig.played.gone.wait(), 30)


async def test_a_slow_client_slows_its_session_down_and_fills_no_memory(front: NewFront) -> None:
    async with front() as rig:
        written = 0

        async def flood(request: web.Request) -> web.StreamResponse:
            nonlocal written
            if request.method == "GET":
                return await rig.played.echo(request)
            keep_small(request)
            response = await begun(request)
            while True:
                await response.write(b"data: " + b"x" * 8192 + b"\n\n")
                written += 8192

        rig.played.answer = flood
        host, port = rig.url.removeprefix("http://").split(":")
        body = json.dumps(BODY | {"stream": True}).encode()
        head = f"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(0)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, (host, int(port)))
            await loop.sock_sendall(slow, head.encode() + body)
            before = -1
            while written != before or not written:  # until nothing moves any more
                before = written
                async with rig.http.get(f"{rig.url}/{KEY}/v1/x") as other:  # others are served
                    assert other.status == 200
                await asyncio.sleep(0.05)
            assert written < 512 * 1024
        await asyncio.wait_for(rig.played.gone.wait(), 30)


async def test_a_whole_answer_that_breaks_off_is_seen_to_be_broken(front: NewFront) -> None:
    async with front() as rig:

        async def half(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            return response

        rig.played.answer = half
        with pytest.raises(aiohttp.ClientPayloadError):
            async with rig.http.post(f"{rig.url}/v1/responses", json=BODY) as answer:
                await answer.read()


async def test_a_stream_of_several_choices_ends_with_the_words_of_the_session(
    front: NewFront,
) -> None:
    async with front() as rig:

        async def chat(request: web.Request) -> web.StreamResponse:
            if request.method == "GET":
                error = {"code": "invalid_value", "message": "several choices"}
                return web.json_response({"error": error}, status=400)
            response = await begun(request)
            chunk = {"id": "chatcmpl-1", "choices": [{"index": 1, "delta": {"role": "assistant"}}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n: paused\n\n".encode())
            return response

        rig.played.answer = chat
        async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="k") as client:
            stream = await client.chat.completions.create(
                model=KEY, messages=[{"role": "user", "content": "x"}], n=2, stream=True
            )
            with pytest.raises(openai.APIError, match="several choices"):
                async for _ in stream:
                    pass


async def test_a_stream_whose_session_stays_away_ends_with_its_words(front: NewFront) -> None:
    async with front(splice_seconds=0.0) as rig:

        async def cut(request: web.Request) -> web.StreamResponse:
            rig.paused()
            response = await begun(request)
            created = {"type": "response.created", "sequence_number": 0}
            created["response"] = {"id": "resp_1"}
            await response.write(f"data: {json.dumps(created)}\n\n: paused\n\n".encode())
            return response

        rig.played.answer = cut
        async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="k") as client:
            stream = await client.responses.create(model=KEY, input="x", stream=True)
            with pytest.raises(openai.APIError, match="needs 12 slices"):
                async for _ in stream:
                    pass


async def test_a_stream_that_nobody_can_take_up_breaks_as_it_would_without_a_gateway(
    front: NewFront,
) -> None:
    async with front() as rig:

        async def nothing(request: web.Request) -> web.StreamResponse:
            response = await begun(request)
            await response.write(b": paused\n\n")
            return response

        rig.played.answer = nothing
        with pytest.raises(aiohttp.ClientPayloadError):
            async with rig.http.post(
                f"{rig.url}/v1/responses", json=BODY | {"stream": True}
            ) as answer:
                await answer.read()


async def test_a_stream_of_which_nothing_is_left_ends_at_once(front: NewFront) -> None:
    async with front() as rig:
        rig.played.answer = begun
        url = f"{rig.url}/{KEY}/v1/responses/resp_1?stream=true&starting_after=99"
        async with rig.http.get(url) as answer:
            assert await answer.read() == b""
        assert len(rig.played.seen) == 1


async def test_logs_hold_neither_keys_nor_bodies(
    front: NewFront, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with front() as rig:
        rig.played.answer = die
        body: dict[str, Any] = BODY | {"input": "a-private-thought"}
        async with rig.http.post(f"{rig.url}/v1/responses", json=body, headers=BEARER) as answer:
            assert answer.status == 502
    assert KEY in caplog.text
    assert "very-secret" not in caplog.text
    assert "a-private-thought" not in caplog.text


async def begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def keep_small(request: web.Request) -> None:
    """As the runtime does, or a lag would hide in megabytes of its kernel's."""
    assert request.transport is not None
    request.transport.set_write_buffer_limits(high=32 * 1024)
    raw = request.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)


async def endless(request: web.Request) -> web.StreamResponse:
    """One event, and then none until the client goes."""
    response = await begun(request)
    await response.write(b"data: {}\n\n")
    await asyncio.Event().wait()
    return response
