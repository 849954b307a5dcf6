"""What the operator wrote on a session's pod, as the tier that its grants may claim.

Pure parsing. A pod that no LLMSession controls stays at the lowest tier, whatever it says of
itself; so does a grant that the operator's list does not name as it is.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sojourn_api import names
from sojourn_api.arbiter import Tier

from sojourn_deviceplugin.ledger import UNKNOWN, Grant


@dataclass(frozen=True, slots=True)
class Promise:
    """One GPU of a pod, as the operator counted it."""

    slices: int
    share: int


@dataclass(frozen=True, slots=True)
class SessionPod:
    """A pod that an LLMSession controls. `promises` by GPU ordinal."""

    namespace: str
    name: str
    tier: str
    priority: int
    promises: Mapping[int, Promise]
    uid: str = ""
    time_slice_ns: int = UNKNOWN.time_slice_ns


def session_pod(raw: Mapping[str, Any]) -> SessionPod | None:
    """From a pod's metadata; None if it is no session's, or is not annotated as the operator does.

    Only the operator can make a pod that an LLMSession controls and that asks for our resources
    (the chart's admission policy), so these annotations are its word.
    """
    meta = raw.get("metadata") or {}
    owners = meta.get("ownerReferences") or ()
    if not any(
        owner.get("controller")
        and owner.get("kind") == "LLMSession"
        and str(owner.get("apiVersion", "")).startswith(f"{names.GROUP}/")
        for owner in owners
    ):
        return None
    notes = meta.get("annotations") or {}
    try:
        promises = {
            int(gpu["ordinal"]): Promise(slices=int(gpu["slices"]), share=int(gpu["share"]))
            for gpu in json.loads(notes[names.ANNOTATION_GPUS])
        }
        return SessionPod(
            namespace=meta["namespace"],
            name=meta["name"],
            tier=str(notes[names.ANNOTATION_TIER]),
            priority=int(notes[names.ANNOTATION_PRIORITY]),
            promises=promises,
            uid=str(meta.get("uid", "")),
            time_slice_ns=_time_slice_ns(notes),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _time_slice_ns(notes: Mapping[str, str]) -> int:
    """Absent on pods of an older operator: then the usual one."""
    milliseconds = notes.get(names.ANNOTATION_TIME_SLICE)
    return UNKNOWN.time_slice_ns if milliseconds is None else int(milliseconds) * 1_000_000


def tier_of(grant: Grant, pod: SessionPod | None, *, slice_bytes: int) -> Tier:
    """What the grant may claim."""
    if pod is None:
        return UNKNOWN
    promise = pod.promises.get(grant.ordinal)
    if promise is None or promise.slices != grant.slices:
        return UNKNOWN
    return Tier(
        priority=pod.priority,
        share=promise.share,
        time_slice_ns=pod.time_slice_ns,
        bytes=grant.slices * slice_bytes,
    )
