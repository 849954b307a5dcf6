"""What a runtime says of itself: its termination message, and its status over HTTP.

Parsing only. A message that is absent, cut or foreign is None: the end is then judged by exit code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sojourn_api.objects import LatencyMetric, SnapshotRef
from sojourn_api.parse import snapshot_ref
from sojourn_api.reader import Invalid, Reader
from sojourn_api.weights import Numbers

from sojourn_operator import reasons

MAX_TEXT: Final = 1024


@dataclass(frozen=True, slots=True)
class End:
    """A termination message. `reason` "Paused" means that everything was saved."""

    reason: str
    message: str
    retry: bool
    snapshot: SnapshotRef | None
    exact: bool
    exact_reason: str
    requests: int
    damage: str = ""
    """What of the saved context was spoilt; empty: nothing."""
    took: str = ""
    """How long the pause took, in words; empty where the runtime does not say."""

    @property
    def saved(self) -> bool:
        return self.reason == reasons.PAUSED


@dataclass(frozen=True, slots=True)
class Latency:
    """95th percentiles in milliseconds, None without traffic; `window` counts gaps of tokens."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    window: int = 0

    def of(self, metric: LatencyMetric) -> float | None:
        return self.ttft_ms if metric is LatencyMetric.TIME_TO_FIRST_TOKEN else self.itl_ms


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """One answer of `/sojourn/v1/status`."""

    phase: str
    epoch: int
    exact: bool
    exact_reason: str
    requests: int
    idle_seconds: float
    unsaved_bytes: int | None
    snapshot: SnapshotRef | None
    latency: Latency
    stalled: str = ""
    """What the engine waits for and does not get; empty: it moves."""
    damage: str = ""
    """As `End.damage`."""
    weights: Numbers | None = None
    """What its weights say of themselves; None until they are open."""


def parse_end(text: str) -> End | None:
    """The termination message, or None where the runtime left none."""
    reader = _reader(text)
    if reader is None:
        return None
    try:
        return End(
            reason=_word(reader.text("reason")),
            message=reader.text("message", "")[:MAX_TEXT],
            retry=reader.flag("retry", default=True),
            snapshot=snapshot(reader, "snapshot"),
            exact=reader.flag("exact", default=True),
            exact_reason=reader.text("exactReason", "")[:MAX_TEXT],
            requests=reader.number("requests", 0),
            damage=reader.text("damage", "")[:MAX_TEXT],
            took=_took(reader.raw),
        )
    except Invalid:
        return None


def _took(raw: Mapping[str, object]) -> str:
    stop, save = _decimal(raw, "stopMs"), _decimal(raw, "saveMs")
    if stop is None or save is None:
        return ""
    sync = _decimal(raw, "syncMs")
    on_disk = "" if sync is None else f", of which fsync {sync:.0f} ms"
    return f"stopped after {stop:.0f} ms, saved in {save:.0f} ms{on_disk}"


def parse_status(text: str) -> RuntimeStatus | None:
    """An answer to a poll, or None if it is none."""
    reader = _reader(text)
    if reader is None:
        return None
    try:
        latency = reader.part("latency")
        return RuntimeStatus(
            phase=reader.text("phase"),
            epoch=reader.number("epoch", 0),
            exact=reader.flag("exact", default=True),
            exact_reason=reader.text("exactReason", "")[:MAX_TEXT],
            requests=reader.number("requestsRunning", 0) + reader.number("requestsWaiting", 0),
            idle_seconds=_decimal(reader.raw, "idleSeconds") or 0.0,
            unsaved_bytes=reader.number("unsavedBytes", 0)
            if "unsavedBytes" in reader.raw
            else None,
            snapshot=snapshot(reader, "lastSnapshot"),
            latency=Latency(
                _decimal(latency.raw, "ttftP95Ms"),
                _decimal(latency.raw, "itlP95Ms"),
                latency.number("window", 0),
            ),
            stalled=reader.text("stalled", "")[:MAX_TEXT],
            weights=Numbers.read(reader.part("weights")) if reader.has("weights") else None,
            damage=reader.text("damage", "")[:MAX_TEXT],
        )
    except Invalid:
        return None


def snapshot(reader: Reader, name: str) -> SnapshotRef | None:
    """The snapshot that a report names; the name of its object is given later."""
    return snapshot_ref(reader.part(name), name="") if reader.has(name) else None


def _reader(text: str) -> Reader | None:
    try:
        raw = json.loads(text)
    except ValueError:
        return None
    return Reader(raw) if isinstance(raw, Mapping) else None


def _decimal(raw: Mapping[str, object], name: str) -> float | None:
    value = raw.get(name)
    return float(value) if isinstance(value, int | float) else None


def _word(reason: str) -> str:
    """A reason that the API server takes: a condition with another text would be refused."""
    clean = "".join(letter for letter in reason if letter.isascii() and letter.isalnum())
    return clean[:64] if clean[:1].isalpha() else reasons.CRASHED
