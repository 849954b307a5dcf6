"""Writes on each namespace of a tenant which tiers its sessions may use.

The chart's admission policy reads it there, so that a wrong tier is refused when a session is
created; what changes later the plan itself rejects. Namespaces are not watched: they are listed
when a tenant changes, and from time to time for those that came later.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

from sojourn_api.names import ANNOTATION_TIERS
from sojourn_api.objects import Tenant

from sojourn_operator.act.api import Api, NotFoundError
from sojourn_operator.kinds import NAMESPACES
from sojourn_operator.seen.world import tenants_by_namespace

LOOK_SECONDS: Final = 60.0
"""How long a namespace may exist before its tenant's tiers are written on it."""

log = logging.getLogger(__name__)


class TierMarks:
    """What is written, and when it is due to be compared again."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._written: dict[str, str] | None = None
        self._due = 0.0

    def write(self, tenants: Iterable[Tenant], *, now: float) -> None:
        """Mark the namespaces of tenants, and unmark those of none."""
        owners = tenants_by_namespace(tenants)
        wanted = {name: ",".join(owner.tiers) for name, owner in owners.items()}
        settled = self._written == wanted and (not wanted or now < self._due)
        if settled:
            return
        for namespace in self._api.list(NAMESPACES)[0]:
            self._mark(namespace["metadata"], wanted)
        self._written, self._due = wanted, now + LOOK_SECONDS

    def _mark(self, meta: dict[str, Any], wanted: dict[str, str]) -> None:
        name = meta["name"]
        found = (meta.get("annotations") or {}).get(ANNOTATION_TIERS)
        if found == wanted.get(name) or meta.get("deletionTimestamp"):
            return
        body = {"metadata": {"annotations": {ANNOTATION_TIERS: wanted.get(name)}}}
        try:
            self._api.patch(NAMESPACES, body, name=name)
        except NotFoundError:
            return
        log.info("namespace %s may use %s", name, wanted.get(name, "every tier"))
