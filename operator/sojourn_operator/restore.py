"""What somebody deleted and is made anew: shipped tiers, and Services of sessions that serve.

Tiers are watched. Services are listed after each relist only: a watch of thousands would cost more
than it finds.
"""

import logging
from typing import Final

from sojourn_api.names import LABEL_SESSION
from sojourn_api.objects import ObjectMeta, Session
from sojourn_api.parse import parse_meta
from sojourn_api.render import tier_to_raw
from sojourn_api.shipped import SHIPPED_TIERS

from sojourn_operator import reasons
from sojourn_operator.act.addresses import Addresses
from sojourn_operator.act.api import Api, ExistsError
from sojourn_operator.act.events import Teller
from sojourn_operator.kinds import SERVICES, TIERS
from sojourn_operator.onepass import OnePass
from sojourn_operator.seen.cache import Cache
from sojourn_operator.seen.world import World
from sojourn_operator.session import orders
from sojourn_operator.session.note import Note, Subject

TIERS_KEY: Final = "shipped tiers"
SERVICES_KEY: Final = "services"

log = logging.getLogger(__name__)


class Restorer:
    """Done by the leader in each pass; what fails is tried again by itself."""

    def __init__(self, api: Api, *, cache: Cache, teller: Teller, addresses: Addresses) -> None:
        self._api = api
        self._cache = cache
        self._teller = teller
        self._addresses = addresses
        self._shipped = False
        self._look = False
        self._missing: set[str] = set()
        """Keys of sessions without a Service."""

    def look(self) -> None:
        """Everything was just read anew: look for the Services too, in the next pass."""
        self._look = True

    def restore(self, this: OnePass, world: World) -> None:
        if this.may(TIERS_KEY):
            with this.trying(TIERS_KEY, "restore"):
                self._tiers(world)
        if self._look and this.may(SERVICES_KEY):
            with this.trying(SERVICES_KEY, "restore"):
                self._missing, self._look = self._find_missing(world), False
        for key in sorted(self._missing):
            if this.may(key):
                with this.trying(key, "restore"):
                    self._service(key, now=this.now)
                    self._missing.discard(key)

    def _tiers(self, world: World) -> None:
        """The shipped tiers that are missing; one that was changed stays as it is."""
        there = world.tiers.keys() | self._cache.tiers.unreadable()
        for tier in SHIPPED_TIERS:
            if tier.meta.name in there:
                continue
            try:
                raw = self._api.create(TIERS, tier_to_raw(tier))
            except ExistsError:
                log.info("tier %s was just created by someone else", tier.meta.name)
                continue
            self._cache.tiers.offer(raw)
            if self._shipped:
                self._teller.tell(_tier_note(parse_meta(raw)), now=world.now)
        self._shipped = True

    def _find_missing(self, world: World) -> set[str]:
        raws, _ = self._api.scan(SERVICES, label_selector=LABEL_SESSION)
        owners = {
            owner.get("uid")
            for raw in raws
            for owner in raw["metadata"].get("ownerReferences") or ()
        }
        return {
            key
            for key, seen in world.sessions.items()
            if _serves(seen.session) and seen.session.meta.uid not in owners
        }

    def _service(self, key: str, *, now: float) -> None:
        seen = self._cache.sessions.get(key)
        if seen is None or not _serves(seen.session):
            return
        restored = self._addresses.ensure(seen.session)
        self._teller.tell(_service_note(seen.session, restored=restored), now=now)


def _serves(session: Session) -> bool:
    return orders.is_placed(session) and bool(session.status.started_at)


def _tier_note(meta: ObjectMeta) -> Note:
    """Told at each return; while this replica has not led before, it is the installation."""
    text = "a shipped tier is created anew when it is deleted; to close it, see Tenant.spec.tiers"
    subject = Subject.of(TIERS.name, meta)
    return Note(subject, reasons.EVENT_TIER_RESTORED, text, once_per=meta.uid, warning=True)


def _service_note(session: Session, *, restored: bool) -> Note:
    name, once = session.meta.name, str(session.status.epoch)
    subject = Subject.of("LLMSession", session.meta)
    if restored:
        reason, text = reasons.EVENT_SERVICE_RESTORED, f"Service {name} was deleted; it is back"
    else:
        reason = reasons.SERVICE_TAKEN
        text = (
            f"Service {name} was deleted, and another of its name is not this session's: clients "
            "do not reach the session; delete that Service, or rename one of them"
        )
    return Note(subject, reason, text, once_per=once, warning=True)
