"""The Service of each session: made once for all its starts, asked for rather than watched.

What it looks like is in `services`; who removes it together with what, in `apply`.
"""

import logging

from sojourn_api.objects import Session

from sojourn_operator.act import services
from sojourn_operator.act.api import REFUSED, Api, ApiError, ExistsError, NotFoundError, Raw
from sojourn_operator.kinds import SERVICES

log = logging.getLogger(__name__)


class Addresses:
    """Makes Services and finds them again. For many threads, of which each has its own session."""

    def __init__(self, api: Api, *, headless: bool) -> None:
        self._api = api
        self._headless = headless
        self._made_early: set[str] = set()
        """Uids of sessions whose Service was made ahead of their first start."""

    def create_early(self, session: Session) -> None:
        """Ahead of a first start; if it is refused, `ensure` meets that again.

        It comes between two writes to the session: of the first the API server's cache learns a
        moment later, and until then it would work out the second twice.
        """
        uid = session.meta.uid
        if session.status.epoch or uid in self._made_early:
            return
        try:
            self._api.create(SERVICES, services.build(session, headless=self._headless))
        except ApiError as error:
            if error.status not in REFUSED and not isinstance(error, ExistsError):
                raise
            return
        self._made_early.add(uid)

    def ensure(self, session: Session) -> bool:
        """See that it is there; False if a Service of this name is not the session's."""
        first = session.status.epoch == 1
        if first and session.meta.uid in self._made_early:
            self._made_early.discard(session.meta.uid)
            return True
        if not first and self._found(session):
            return True
        try:
            self._api.create(SERVICES, services.build(session, headless=self._headless))
        except ExistsError:
            return self._found(session) is not None
        return True

    def remove(self, session: Session) -> None:
        """The garbage collector would do it too, but perhaps after the name is used again."""
        self._made_early.discard(session.meta.uid)
        found = self._found(session)
        if found is None:
            return
        meta, uid = session.meta, found["metadata"]["uid"]
        try:
            self._api.delete(SERVICES, name=meta.name, uid=uid, namespace=meta.namespace)
        except NotFoundError:
            log.info("the Service of %s/%s was gone already", meta.namespace, meta.name)

    def _found(self, session: Session) -> Raw | None:
        """The Service of this name, if it is this session's."""
        meta = session.meta
        try:
            raw = self._api.get(SERVICES, name=meta.name, namespace=meta.namespace)
        except NotFoundError:
            return None
        return raw if services.belongs(raw, session) else None
