"""Answers that are errors, in the form that OpenAI clients read.

One exception, one constructor per kind of refusal; the middleware in `app` turns it into JSON.
What went wrong inside the engine is not decided here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_CAPITAL: Final = re.compile(r"(?<=.)([A-Z])")
RETRY_SECONDS: Final = 1
"""A guess: loading and resuming take seconds, and clients back off after their first try."""


@dataclass(eq=False)
class ApiError(Exception):
    """A refusal with its HTTP status; `param` names the field of the request that is to blame."""

    message: str
    status: int = 400
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def body(self) -> dict[str, Json]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(message, param=param, code=code)


def unauthorised(message: str) -> ApiError:
    return ApiError(
        message, status=401, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
    )


def not_found(what: str, name: str, *, param: str | None = None, code: str) -> ApiError:
    """`what` exists not under `name` in this session."""
    return ApiError(f"No {what} '{name}' in this session.", status=404, param=param, code=code)


def conflict(message: str, *, param: str | None = None, code: str) -> ApiError:
    return ApiError(message, status=409, param=param, code=code)


def too_large(limit: int) -> ApiError:
    message = f"The request's body is larger than {limit} bytes; send less text."
    return ApiError(message, status=413, code="request_too_large")


def unavailable(reason: str, message: str) -> ApiError:
    """The session cannot answer now, but will: the client shall come back."""
    return ApiError(
        message,
        status=503,
        kind="server_error",
        code=reason,
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def unsupported(what: str, *, param: str | None = None) -> ApiError:
    """What is not there, by name; `x-should-retry` keeps OpenAI's clients from asking again."""
    return ApiError(
        f"This server has no {what}.",
        status=501,
        kind="not_implemented_error",
        param=param,
        code="not_implemented",
        headers={"x-should-retry": "false"},
    )


def store_failed(reason: str) -> ApiError:
    """What is to be kept cannot be; `reason` is that of the status. No paths: they are not the
    client's.
    """
    if reason == "StoreFull":
        message = (
            "The session's store is full, so nothing new can be kept; make room or enlarge its "
            "volume, then ask again."
        )
        return ApiError(message, status=507, kind="server_error", code="store_full")
    if reason == "StaleEpoch":
        message = "A later start of this session has taken over; ask again at its address."
        return unavailable("stale_epoch", message)
    message = (
        f"The session's store fails ({reason}); its status and the log say more. Mend it, then "
        "ask again."
    )
    return unavailable(_CAPITAL.sub(r"_\1", reason).lower(), message)


def broken(message: str) -> ApiError:
    """The server's own fault."""
    return ApiError(message, status=500, kind="server_error", code="server_error")


def context_exceeded(*, prompt: int, wanted: int, limit: int, param: str) -> ApiError:
    message = (
        f"'{param}' is too much: the context holds {limit} tokens, but the prompt has {prompt}"
        + (f" and {wanted} more are asked for" if wanted else "")
        + ". Shorten the prompt or ask for fewer tokens."
    )
    return ApiError(message, param=param, code="context_length_exceeded")
