"""`sojourn-operator release`: lets go of every session, so that Sojourn can be uninstalled.

It suspends all sessions and waits while the operator, which still runs, pauses them and records
where their contexts are. Then it takes the Lease, so that no replica writes any more, and removes
the finalizers that only an operator would remove. No session and no saved context is deleted.
"""

import logging
import time
from typing import Any, Final

from sojourn_api.names import FINALIZER_SESSION, LABEL_SESSION

from sojourn_operator.act.api import Api, ConflictError, NotFoundError
from sojourn_operator.config import Lease
from sojourn_operator.kinds import LEASES, PODS, SESSIONS
from sojourn_operator.leader import SAFE_SECONDS

HOLDER: Final = "sojourn-release"
HOLD_SECONDS: Final = 60
"""The Deployment and the Lease are removed right after this; a guess for slow clusters."""
LOOK_SECONDS: Final = 1.0
TRIES: Final = 20
"""To win the Lease from a leader that renews it every two seconds: one is enough as a rule."""

log = logging.getLogger(__name__)


class ReleaseError(Exception):
    """Sessions could not be let go; the text names them and what to do."""


def release(api: Api, *, lease: Lease, timeout: float, fence_seconds: float = SAFE_SECONDS) -> None:
    """Until no session's pod and no finalizer of a session is left."""
    deadline = time.monotonic() + timeout
    _suspend(api)
    while pods := _pods(api):
        if time.monotonic() > deadline:
            raise ReleaseError(
                f"after {timeout:.0f} s these pods of sessions are left: {', '.join(pods[:10])}; "
                "see their sessions' status (kubectl get llms -A) and the operator's log, then "
                "uninstall again"
            )
        log.info("waiting for %d pods of sessions to save and end", len(pods))
        time.sleep(LOOK_SECONDS)
        _suspend(api)  # a session may have been created meanwhile
    _take(api, lease)
    # A write that the old leader has begun reaches the API server within this time (see `leader`).
    time.sleep(fence_seconds)
    _unfinalize(api)


def _suspend(api: Api) -> None:
    sessions, _ = api.list(SESSIONS)
    for session in sessions:
        meta = session["metadata"]
        if session["spec"].get("suspend"):
            continue
        try:
            body = {"spec": {"suspend": True}}
            api.patch(SESSIONS, body, name=meta["name"], namespace=meta["namespace"])
        except NotFoundError:
            continue
        log.info("suspended %s/%s", meta["namespace"], meta["name"])


def _pods(api: Api) -> list[str]:
    pods, _ = api.list(PODS, label_selector=LABEL_SESSION)
    return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods]


def _take(api: Api, lease: Lease) -> None:
    """The Lease, from whoever holds it; without one no operator ever led."""
    for _ in range(TRIES):
        try:
            found = api.get(LEASES, name=lease.name, namespace=lease.namespace)
        except NotFoundError:
            return
        spec: dict[str, Any] = found["spec"]
        spec["holderIdentity"] = HOLDER
        spec["leaseDurationSeconds"] = HOLD_SECONDS
        spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        try:
            api.replace(LEASES, found)
        except ConflictError:
            continue
        return
    raise ReleaseError(
        f"the Lease {lease.namespace}/{lease.name} changes faster than it can be taken; "
        "see who holds it (kubectl get lease), then uninstall again"
    )


def _unfinalize(api: Api) -> None:
    sessions, _ = api.list(SESSIONS)
    for session in sessions:
        meta = session["metadata"]
        held = meta.get("finalizers") or []
        if FINALIZER_SESSION not in held:
            continue
        rest = [name for name in held if name != FINALIZER_SESSION]
        identity = {key: meta[key] for key in ("name", "namespace", "uid")}
        try:
            api.set_finalizers(SESSIONS, rest, **identity, held=held)
        except NotFoundError:
            continue
        log.info("let go of %s/%s", meta["namespace"], meta["name"])
