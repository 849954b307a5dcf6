"""A slow reader slows its own request only; one that goes away ends it."""

import asyncio
import json
import socket
from typing import Any

import aiohttp

USER: Any = [{"role": "user", "content": "x"}]
KEY = {"Authorization": "Bearer a-key"}
TOKENS = 20_000


def request(url: str, path: str, body: dict[str, Any]) -> tuple[tuple[str, int], bytes]:
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a-key\r\n"
    whole = f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n{data}"
    return (host, int(port)), whole.encode()


def slow_socket() -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(0)
    return made


def read_all(sock: socket.socket) -> bytes:
    sock.settimeout(60)
    found = b""
    while data := sock.recv(65536):
        found += data
    return found


async def test_a_slow_reader_stops_its_own_request_and_no_other(serve: Any, talker: Any) -> None:
    async with serve(talker(context_length=10**6)) as rig:
        body = {"model": "bytes", "messages": USER, "stream": True}
        body |= {"ignore_eos": True, "max_tokens": TOKENS}
        address, data = request(rig.url, "/v1/chat/completions", body)
        loop = asyncio.get_running_loop()
        with slow_socket() as sock:
            await loop.sock_connect(sock, address)
            await loop.sock_sendall(sock, data)
            await asyncio.to_thread(rig.session.wait_for_lag)
            (name,) = rig.session.running
            made = -1
            while (now := rig.session.made(name)) != made:
                made = now
                # another client is served from beginning to end meanwhile
                other = await rig.client.chat.completions.create(model="bytes", messages=USER)
                assert other.choices[0].finish_reason == "stop"
            assert made < TOKENS
            answer = await asyncio.to_thread(read_all, sock)
        assert answer.count(b'"content":') == TOKENS + 1
        assert answer.rstrip().endswith(b"0")


async def test_a_client_that_goes_away_ends_its_stream(rig: Any) -> None:
    rig.session.allow(2)
    stream = await rig.client.chat.completions.create(
        model="bytes", messages=USER, n=2, stream=True
    )
    await anext(aiter(stream))
    await stream.close()
    await asyncio.to_thread(rig.session.wait_until_forgotten)
    async with aiohttp.ClientSession() as http, http.get(f"{rig.url}/metrics") as response:
        shown = await response.text()
    assert 'vllm:request_success_total{finished_reason="abort",model_name="bytes"} 2.0' in shown


async def test_a_client_that_goes_away_ends_its_foreground_response(rig: Any) -> None:
    rig.session.allow(1)
    stream = await rig.client.responses.create(model="bytes", input="x", stream=True)
    first = await anext(aiter(stream))
    await stream.close()
    await asyncio.to_thread(rig.session.wait_until_forgotten)
    ended = await rig.client.responses.retrieve(first.response.id)
    assert ended.status == "cancelled"


async def test_a_client_that_gives_up_waiting_ends_its_request(rig: Any) -> None:
    rig.session.allow(1)
    bodies = {
        "/v1/chat/completions": {"model": "bytes", "messages": USER},
        "/v1/responses": {"model": "bytes", "input": "x"},
    }
    for path, body in bodies.items():
        address, data = request(rig.url, path, body)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        await asyncio.to_thread(rig.session.wait_until_running)
        writer.close()
        del reader
        await asyncio.to_thread(rig.session.wait_until_forgotten)


async def test_a_disconnect_while_pausing_cancels_nothing(serve: Any, talker: Any) -> None:
    session = talker()
    session.allow(1)
    async with serve(session) as rig:
        stream = await rig.client.chat.completions.create(model="bytes", messages=USER, stream=True)
        await anext(aiter(stream))
        session.pausing = True
        await stream.close()
        # an answer on another connection: by then the server has seen the first one close
        async with aiohttp.ClientSession() as http, http.get(f"{rig.url}/healthz") as response:
            assert response.status == 200
        saved = session.pause()
    assert len(saved.requests) == 1


async def test_numbers_are_counted_and_shown(rig: Any) -> None:
    await rig.client.chat.completions.create(model="bytes", messages=USER)
    await rig.client.responses.create(model="bytes", input="x")
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{rig.url}/metrics") as response:
            shown = await response.text()
        async with http.get(f"{rig.url}/sojourn/v1/status") as response:
            status = await response.json()
    assert 'vllm:time_to_first_token_seconds_count{model_name="bytes"} 2.0' in shown
    assert 'vllm:inter_token_latency_seconds_count{model_name="bytes"} 24.0' in shown
    assert 'vllm:request_success_total{finished_reason="stop",model_name="bytes"} 2.0' in shown
    assert 'sojourn_http_requests_total{route="/v1/responses",status="200"} 1.0' in shown
    assert 'vllm:num_requests_running{model_name="bytes"} 0.0' in shown
    assert "sojourn_starts_total 3.0" in shown
    assert 'sojourn_step_hand_over_seconds_bucket{le="0.0005"} 3.0' in shown
    assert "sojourn_step_hand_over_seconds_count 55.0" in shown
    assert "sojourn_step_hand_over_seconds_sum 2.5" in shown
    assert status["phase"] == "Serving"
