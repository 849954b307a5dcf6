"""Answers that are errors, in the form that OpenAI clients read. Pure.

What the sessions themselves answer is passed on as it is, and is not made here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

RETRY_SECONDS: Final = 5
"""A guess: whoever was held in vain shall not come back at once."""


@dataclass(eq=False)
class ApiError(Exception):
    """A refusal with its HTTP status."""

    message: str
    status: int = 400
    code: str = "invalid_value"
    kind: str = "invalid_request_error"
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def body(self) -> bytes:
        named = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": named}).encode()


def unavailable(reason: str, message: str, *, again: bool = True) -> ApiError:
    """The session does not answer; `again` False where another try soon cannot help."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    if not again:
        headers["x-should-retry"] = "false"  # what OpenAI's clients obey
    return ApiError(message, status=503, code=reason, kind="server_error", headers=headers)


def unknown(key: str) -> ApiError:
    message = f"There is no session '{key}'; a model is named NAMESPACE/SESSION."
    return ApiError(message, status=404, code="model_not_found", param="model")


def unauthorised(key: str) -> ApiError:
    message = f"Session {key} needs an API key: send 'Authorization: Bearer <key>'."
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(message, status=401, code="invalid_api_key", headers=headers)


def failed() -> ApiError:
    message = "The gateway failed on this request; its log says why."
    return ApiError(message, status=500, code="internal_error", kind="server_error")


def broken(key: str, what: str) -> ApiError:
    """The session took the request and did not answer it."""
    message = f"Session {key}: {what}; whether the request was carried out is not known."
    return ApiError(message, status=502, code="bad_gateway", kind="server_error")
