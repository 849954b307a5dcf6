"""The object that describes one saved context. Pure: a value, nothing created."""

import dataclasses
from typing import Any

from sojourn_api import names
from sojourn_api.objects import ObjectMeta, Session, Snapshot, SnapshotPolicy, SnapshotRef
from sojourn_api.render import snapshot_to_raw

from sojourn_operator.act.pods import MANAGED_BY, owner


def name(session: Session, *, epoch: int) -> str:
    """One snapshot for each start that ended well."""
    return names.pod_name(session.meta.name, epoch)


def build(session: Session, ref: SnapshotRef) -> dict[str, Any]:
    """Owned by its session, and so deleted with it, unless the policy is Retain."""
    meta = ObjectMeta(ref.name, session.meta.namespace, uid="", generation=0, created="")
    labels = {MANAGED_BY: names.MANAGER_OPERATOR, names.LABEL_SESSION: session.meta.name}
    snapshot = Snapshot(dataclasses.replace(meta, labels=labels), session.meta.name, ref)
    raw = snapshot_to_raw(snapshot)
    if session.spec.snapshot_policy is not SnapshotPolicy.RETAIN:
        raw["metadata"]["ownerReferences"] = [owner(session, controller=False)]  # type: ignore[index]
    return raw
