"""What the gateway knows of one session, and how it is read. Pure: no network, no clock.

Sources are an LLMSession as the API server sends it, and the status page of a runtime.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sojourn_api import names
from sojourn_api.objects import Condition, SessionStatus
from sojourn_api.objects import Session as ApiSession
from sojourn_api.parse import parse_meta, parse_session
from sojourn_api.reader import Invalid

API = "/v1"
"""What an endpoint in a status ends with, and every path of OpenAI's API begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session; `reason` and `message` are its own words about why it is (not) ready."""

    key: str
    """NAMESPACE/NAME, which clients send as `model`."""
    model: str = ""
    """What the session's runtime calls its model."""
    endpoint: str = ""
    """Base URL without /v1; empty before the first start."""
    ready: bool = False
    reason: str = "Unknown"
    message: str = "nothing is known of it yet"
    held_back: bool = False
    """Only a change by its owner, or of what it names, brings it back."""
    asleep_since: str = ""
    """When it was paused for idleness, unless it was woken since."""
    guarded: bool = False
    """It asks for an API key of its own."""
    created: int = 0

    @property
    def words(self) -> str:
        return f"Session {self.key} does not answer ({self.reason}): {self.message}."


def from_object(raw: Mapping[str, object]) -> Session:
    """An LLMSession; one that cannot be read is there, and says why it does not answer."""
    meta = parse_meta(raw)
    key, created = f"{meta.namespace}/{meta.name}", int(_seconds(meta.created))
    try:
        session = parse_session(raw)
    except Invalid as error:
        return Session(
            key=key, reason=names.INVALID_SPEC, message=str(error), held_back=True, created=created
        )
    status, spec = session.status, session.spec
    ready = _condition(status.conditions, names.READY)
    return Session(
        key=key,
        model=spec.model,
        endpoint=status.endpoint.removesuffix(API),
        ready=ready.status == "True",
        reason=ready.reason,
        message=ready.message,
        held_back=spec.suspend or meta.deleting or _needs_a_change(ready, session),
        asleep_since=_asleep_since(status, meta.annotations),
        guarded=spec.api_key is not None,
        created=created,
    )


def from_page(key: str, endpoint: str, page: Mapping[str, Any] | None) -> Session:
    """A runtime by its status page; None where nobody answered."""
    if page is None:
        silent = f"nobody answers at {endpoint}"
        return Session(key=key, endpoint=endpoint, reason="NotAnswering", message=silent)
    phase = str(page.get("phase", "Unknown"))
    return Session(
        key=key,
        model=str(page.get("model", "")),
        endpoint=endpoint,
        ready=phase == names.PHASE_SERVING,
        reason=phase,
        message=f"its runtime is in the phase {phase}",
    )


def wake_text(session: Session, *, now: float) -> str:
    """The time that wakes the session: not before its pause, whatever the two clocks say."""
    seconds = max(now, _seconds(session.asleep_since))
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _asleep_since(status: SessionStatus, annotations: Mapping[str, str]) -> str:
    """As the operator judges it: asleep unless woken at the time of the pause or later."""
    paused = _condition(status.conditions, names.PAUSED)
    if paused.status != "True" or paused.reason != names.REASON_IDLE:
        return ""
    woken = _seconds(annotations.get(names.ANNOTATION_WAKE, ""))
    return "" if woken >= _seconds(status.paused_at) else status.paused_at


def _needs_a_change(ready: Condition, session: ApiSession) -> bool:
    """Waiting does not help: it cannot start as it is, or its last start failed for good."""
    if ready.status == "True":
        return False
    failure = session.status.failure
    failed = failure is not None and not failure.retry and failure.reason == ready.reason
    return failed or ready.reason in names.NEED_A_CHANGE


def _condition(conditions: Iterable[Condition], kind: str) -> Condition:
    unknown = Condition(kind, "Unknown", "Pending", "the operator has not looked at it yet")
    return next((one for one in conditions if one.type == kind), unknown)


def _seconds(rfc3339: str) -> float:
    """Seconds since 1970; 0 for what is empty or no time."""
    try:
        return datetime.fromisoformat(rfc3339).timestamp()
    except ValueError:
        return 0.0
