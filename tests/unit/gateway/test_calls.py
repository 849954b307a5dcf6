"""Which session a request is for, and what of it goes there."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_gateway.calls import HOP_BY_HOP, Call, Kind, passed, read_call
from sojourn_gateway.errors import ApiError

KEY = "Bearer very-secret"


def read(body: Any = None, **fields: Any) -> Call:
    """A call with `body` as JSON, or as it is where it is bytes already."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    given: dict[str, Any] = {
        "key": "",
        "method": "POST",
        "path": "/v1/responses",
        "query": "",
        "headers": (("Authorization", KEY), ("Content-Type", "application/json")),
        "body": raw,
    }
    return read_call(**(given | fields))


def test_the_model_names_the_session_and_becomes_what_the_session_calls_it() -> None:
    call = read({"model": "chats/one", "input": "é", "seed": 2**60})
    assert call.key == "chats/one"
    assert json.loads(call.body_for("smol")) == {"model": "smol", "input": "é", "seed": 2**60}
    assert ("Authorization", KEY) in call.headers


def test_by_path_the_body_stays_as_it_is_unless_it_names_the_session_too() -> None:
    odd = b'{"model" : "smol"}'
    assert read(key="chats/one", body=odd).body_for("smol") == odd
    named = read({"model": "chats/one"}, key="chats/one")
    assert json.loads(named.body_for("smol")) == {"model": "smol"}


@pytest.mark.parametrize("body", [b"", b"{}", b"no json", b"[1]", b'{"model": 3}', b"[" * 9999])
def test_a_request_that_names_no_session_is_told_both_ways_to_do_it(body: bytes) -> None:
    with pytest.raises(ApiError, match="/NAMESPACE/SESSION/v1/responses") as caught:
        read(body=body)
    assert caught.value.status == 400


@pytest.mark.parametrize("path", ["/v1/../metrics", "/v1/%2e%2E/metrics", "/v1/a/%2e./b"])
def test_no_path_leads_out_of_the_api(path: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(key="chats/one", path=path, method="GET")
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "query", "kind"),
    [
        ("POST", "/v1/responses", {"stream": True}, "", Kind.RESPONSE),
        ("GET", "/v1/responses/resp_1", None, "stream=true&starting_after=4", Kind.RESPONSE),
        ("POST", "/v1/chat/completions", {"stream": True}, "", Kind.CHAT),
        ("POST", "/v1/completions", {"stream": True}, "", Kind.COMPLETION),
        ("POST", "/v1/completions", {"stream": True, "echo": True}, "", Kind.OTHER),
        ("POST", "/v1/responses", {"stream": False}, "", Kind.OTHER),
        ("POST", "/v1/responses/resp_1/cancel", None, "", Kind.OTHER),
        ("GET", "/v1/responses/resp_1", None, "", Kind.OTHER),
    ],
)
def test_how_an_answer_goes_on_after_a_cut(
    method: str, path: str, body: Any, query: str, kind: Kind
) -> None:
    call = read(body, key="a/b", method=method, path=path, query=query)
    assert call.kind is kind
    assert call.streamed is (kind is not Kind.OTHER or bool(body and body.get("stream")))
    assert call.after == (4 if "starting_after" in query else -1)


@given(
    st.lists(
        st.tuples(st.sampled_from([*HOP_BY_HOP, "x-mine", "Accept", "Authorization"]), st.text())
    )
)
def test_headers_of_one_connection_end_with_it(headers: list[tuple[str, str]]) -> None:
    kept = passed(headers)
    assert not [name for name, _ in kept if name.lower() in HOP_BY_HOP]
    assert set(kept) <= set(headers)


def test_headers_that_the_message_binds_to_its_connection_end_with_it() -> None:
    given = (("Connection", "close, X-Hop"), ("x-hop", "1"), ("X-Kept", "2"), ("Host", "h"))
    assert passed(given) == (("X-Kept", "2"),)


def test_a_call_in_a_log_shows_neither_key_nor_body() -> None:
    call = read({"model": "chats/one", "input": "a secret"})
    assert repr(call) == "<POST for chats/one>"


def test_the_rest_of_a_stream_is_asked_for_with_the_same_key_and_no_body() -> None:
    call = read({"model": "chats/one", "stream": True})
    rest = call.again("/v1/responses/resp_1?stream=true&starting_after=3")
    assert (rest.method, rest.body, rest.streamed) == ("GET", b"", True)
    assert rest.headers == (("Authorization", KEY),)
