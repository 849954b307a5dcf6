"""What a client asks for, and of which session. Pure.

A call is found by `model` in the body of a request to /v1, or by the path
/NAMESPACE/SESSION/v1/... of any request. What is done with it is decided in `decide`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from sojourn_gateway.errors import ApiError

Headers = tuple[tuple[str, str], ...]

HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""RFC 9110, 7.6.1: they are about one connection, and end with it."""
OURS: Final = frozenset({"host", "content-length", "expect", "accept-encoding", "content-encoding"})
"""Of a request: made anew for the session, which never compresses and gets bodies unpacked."""


class Kind(Enum):
    """How the answer goes on after a cut."""

    OTHER = "other"
    RESPONSE = "response"
    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as it goes to a session. `repr` shows neither its headers nor its body."""

    key: str
    method: str
    target: str
    """Path and query, as the client wrote them."""
    headers: Headers
    body: bytes = b""
    model: str = ""
    """As the body has it."""
    streamed: bool = False
    kind: Kind = Kind.OTHER
    after: int = -1
    """`starting_after` of the query."""

    def __repr__(self) -> str:
        return f"<{self.method} for {self.key}>"

    def again(self, target: str) -> "Call":
        """The call that takes up the rest of this one's stream."""
        headers = tuple(pair for pair in self.headers if pair[0].lower() != "content-type")
        return Call(key=self.key, method="GET", target=target, headers=headers, streamed=True)

    def body_for(self, model: str) -> bytes:
        """The body in the session's words: it knows its model by another name than its own."""
        if not self.model or self.model != self.key:
            return self.body
        value = json.loads(self.body) | {"model": model}
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def passed(headers: Iterable[tuple[str, str]], *, ours: frozenset[str] = OURS) -> Headers:
    """Headers without those of one connection, named in advance or by the message itself."""
    pairs = tuple(headers)
    named = {
        token.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for token in value.split(",")
    }
    dropped = HOP_BY_HOP | ours | named
    return tuple((name, value) for name, value in pairs if name.lower() not in dropped)


def read_call(
    *, key: str, method: str, path: str, query: str, headers: Headers, body: bytes
) -> Call:
    """`key` is empty where the body's `model` has to name the session; ApiError if it does not."""
    if ".." in unquote(path).split("/"):
        raise ApiError(f"{path} is not there.", status=404, code="not_found")
    fields = _fields(body)
    named = fields.get("model")
    model = named if isinstance(named, str) else ""
    asked = parse_qs(query)
    streamed = fields.get("stream") is True or asked.get("stream", [""])[-1] in {"true", "1"}
    return Call(
        key=key or _key(model, method=method, path=path),
        method=method,
        target=f"{path}?{query}" if query else path,
        headers=passed(headers),
        body=body,
        model=model,
        streamed=streamed,
        kind=_kind(method, path, fields) if streamed else Kind.OTHER,
        after=_number(asked.get("starting_after", [""])[-1]),
    )


def _fields(body: bytes) -> Mapping[str, Any]:
    """The body's object; what is none is for the session to refuse."""
    try:
        value = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _key(model: str, *, method: str, path: str) -> str:
    if not model:
        message = (
            f'{method} {path} names no session: send "model": "NAMESPACE/SESSION" in a JSON'
            f" body, or ask at /NAMESPACE/SESSION{path}."
        )
        raise ApiError(message, code="session_not_named", param="model")
    return model


def _kind(method: str, path: str, fields: Mapping[str, Any]) -> Kind:
    parts = tuple(part for part in path.split("/") if part)
    match method, parts:
        case ("POST", ("v1", "responses")) | ("GET", ("v1", "responses", _)):
            return Kind.RESPONSE
        case "POST", ("v1", "chat", "completions"):
            return Kind.CHAT
        # an echoed prompt is a chunk that is no token, and not told apart from one
        case "POST", ("v1", "completions") if not fields.get("echo"):
            return Kind.COMPLETION
    return Kind.OTHER


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 else -1
