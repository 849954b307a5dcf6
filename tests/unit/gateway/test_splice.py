"""A stream cut anywhere, however often, reaches the client whole: each event once, in order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_gateway.calls import Call, Kind
from sojourn_gateway.splice import (
    MAX_FRAME,
    ChunkThread,
    Frames,
    ResponseThread,
    SpliceError,
    Thread,
    thread_of,
)

KEEP_ALIVE = b": keep-alive\n\n"
PAUSED = b": paused\n\n"


def event(body: dict[str, Any]) -> bytes:
    return f"event: {body.get('type', 'x')}\ndata: {json.dumps(body)}\n\n".encode()


def response_events(tokens: int) -> list[bytes]:
    """As the runtime makes them of a response."""
    kinds = ["response.created", "response.in_progress", "response.output_item.added"]
    kinds += ["response.output_text.delta"] * tokens
    kinds += ["response.output_item.done", "response.completed"]
    found = []
    for number, kind in enumerate(kinds):
        body: dict[str, Any] = {"type": kind, "sequence_number": number}
        if number == 0 or kind == "response.completed":
            body["response"] = {"id": "resp_1"}
        found.append(event(body))
    return found


def chat_tokens(tokens: int, *, call: bool, usage: bool) -> list[list[bytes]]:
    """Chunks of each token: the first has the role, the last a call, the finish, usage, the end."""
    found = []
    for position in range(tokens):
        deltas: list[dict[str, Any]] = (
            [{"role": "assistant", "content": ""}] if not position else []
        )
        deltas.append({"content": f"w{position}"})
        last = position == tokens - 1
        if last:
            deltas += [{"tool_calls": [{"index": 0}]}] if call else []
            deltas.append({})
        chunks = [{"id": "chatcmpl-1", "choices": [{"index": 0, "delta": d}]} for d in deltas]
        if last and usage:
            chunks.append({"id": "chatcmpl-1", "choices": []})
        frames = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
        found.append([*frames, b"data: [DONE]\n\n"] if last else frames)
    return found


def completion_tokens(tokens: int, *, usage: bool) -> list[list[bytes]]:
    found = []
    for position in range(tokens):
        chunk = {"id": "cmpl-1", "choices": [{"index": 0, "text": f"w{position}"}]}
        found.append([f"data: {json.dumps(chunk)}\n\n".encode()])
    tail = [b'data: {"id": "cmpl-1", "choices": []}\n\n'] if usage else []
    found[-1] += [*tail, b"data: [DONE]\n\n"]
    return found


def play(
    thread: Thread, serve: Any, cuts: list[int], sizes: list[int], *, words: bool
) -> list[bytes]:
    """What the client gets of a session that is cut after so many bytes, again and again.

    `serve` gives all bytes of the stream that a target asks for; the last part is not cut.
    """
    got: list[bytes] = []
    target = ""
    for cut in [*cuts, None]:
        data = b"".join(serve(target))
        part = data if cut is None else data[:cut]
        frames, at = Frames(), 0
        if words and cut is not None:
            part += PAUSED if part.endswith(b"\n\n") else b""
        for size in [*sizes, len(part)]:
            got += [f for f in frames.feed(part[at : at + size]) if thread.take(f)]
            at += size
        if thread.ended:
            break
        found = thread.cut()
        if found is None:
            break
        target = found
    return got


CUTS = st.lists(st.integers(0, 3000), max_size=6)
SIZES = st.lists(st.integers(1, 200), max_size=8)


@given(tokens=st.integers(0, 12), cuts=CUTS, sizes=SIZES, words=st.booleans())
def test_a_response_cut_anywhere_gives_each_number_once(
    tokens: int, cuts: list[int], sizes: list[int], *, words: bool
) -> None:
    events = response_events(tokens)

    def serve(target: str) -> list[bytes]:
        if not target:
            return [KEEP_ALIVE, *events]
        path, _, query = target.partition("?stream=true&starting_after=")
        assert path == "/v1/responses/resp_1"
        return [*events[int(query) + 1 :], KEEP_ALIVE]

    thread = ResponseThread()
    got = [f for f in play(thread, serve, cuts, sizes, words=words) if f != KEEP_ALIVE]
    if thread.name:
        assert got == events
        assert thread.ended
    else:  # cut before its first event: nobody knows its id
        assert got == []


@given(
    tokens=st.integers(1, 10),
    chat=st.booleans(),
    call=st.booleans(),
    usage=st.booleans(),
    cuts=CUTS,
    sizes=SIZES,
)
def test_chunks_cut_anywhere_come_once_and_in_order(
    tokens: int, cuts: list[int], sizes: list[int], *, chat: bool, call: bool, usage: bool
) -> None:
    made = (
        chat_tokens(tokens, call=call, usage=usage)
        if chat
        else completion_tokens(tokens, usage=usage)
    )
    path = "/v1/chat/completions" if chat else "/v1/completions"

    def serve(target: str) -> list[bytes]:
        if not target:
            return [frame for token in made for frame in token]
        place, _, after = target.partition("?stream=true&starting_after=")
        assert place == f"{path}/{'chatcmpl-1' if chat else 'cmpl-1'}"
        return [frame for token in made[int(after) + 1 :] for frame in token]

    thread = ChunkThread(path=path, chat=chat)
    got = play(thread, serve, cuts, sizes, words=True)
    assert got == (serve("") if thread.name else [])
    assert thread.ended == bool(thread.name)


@given(data=st.lists(st.sampled_from([b"a", b"\n", b"data: {}", b"\n\n"])), sizes=SIZES)
def test_frames_lose_and_invent_no_byte(data: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(data)
    frames, at, found = Frames(), 0, []
    for size in [*sizes, len(whole)]:
        found += list(frames.feed(whole[at : at + size]))
        at += size
    assert all(frame.endswith(b"\n\n") for frame in found)
    assert whole.startswith(b"".join(found))
    assert b"\n\n" not in whole[len(b"".join(found)) :]


def test_an_event_without_end_is_not_kept_for_ever() -> None:
    frames = Frames()
    with pytest.raises(SpliceError):
        list(frames.feed(b"x" * (MAX_FRAME + 1)))


def test_a_missing_event_is_never_passed_over() -> None:
    thread = ResponseThread()
    events = response_events(3)
    thread.take(events[0])
    with pytest.raises(SpliceError, match="2 follows 0"):
        thread.take(events[2])


def test_an_error_in_a_stream_ends_it() -> None:
    for thread in (ResponseThread(), ChunkThread(path="/v1/completions", chat=False)):
        assert thread.take(b'data: {"error": {"message": "no"}}\n\n')
        assert thread.ended


def call(**fields: Any) -> Call:
    given = {"key": "a/b", "method": "POST", "target": "/v1/responses", "headers": ()}
    return Call(**(given | fields))


def test_a_client_that_attaches_by_itself_is_spliced_from_where_it_stood() -> None:
    again = call(
        method="GET",
        target="/v1/responses/resp_1?stream=true&starting_after=2",
        kind=Kind.RESPONSE,
        after=2,
    )
    thread = thread_of(again)
    assert thread is not None
    assert thread.cut() == "/v1/responses/resp_1?stream=true&starting_after=2"
    assert thread.take(response_events(5)[3])


def test_other_answers_are_passed_on_as_they_come() -> None:
    assert thread_of(call(kind=Kind.OTHER)) is None
