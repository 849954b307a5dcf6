"""What objects besides sessions say: models, snapshots, tenants, and nodes that fell silent.

Written only where something changed. What they shall say is decided in `verdicts`.
"""

import logging
from collections.abc import Mapping
from typing import Any

from sojourn_api.names import READY
from sojourn_api.objects import Condition, ObjectMeta, Tenant
from sojourn_api.render import conditions_to_raw

from sojourn_operator import plan, reasons
from sojourn_operator.act import status as conditions
from sojourn_operator.act.api import Api, NotFoundError
from sojourn_operator.act.events import Teller
from sojourn_operator.act.status import Verdict
from sojourn_operator.figures import figures
from sojourn_operator.kinds import GPU_NODES, MODELS, SNAPSHOTS, TENANTS, Kind
from sojourn_operator.namespaces import TierMarks
from sojourn_operator.plan.tenants import broken_promises
from sojourn_operator.seen.cache import Cache, Table
from sojourn_operator.seen.world import World
from sojourn_operator.session.note import Note, Subject
from sojourn_operator.verdicts import (
    gone_verdict,
    model_verdict,
    sessions_by_model,
    snapshot_verdict,
    tenant_verdict,
    weights_by_model,
)

log = logging.getLogger(__name__)


class Upkeep:
    """Done by the leader in each pass; an error of the API server is the loop's to handle."""

    def __init__(self, api: Api, *, cache: Cache, teller: Teller) -> None:
        self._api = api
        self._cache = cache
        self._teller = teller
        self._silent: dict[str, str] = {}
        """Nodes that were told to be silent, and since when."""
        self._tenants: dict[str, dict[str, Any]] = {}
        self._marks = TierMarks(api)

    def tell_silent(self, world: World, name: str) -> None:
        """Of a node whose device plugin is silent; what the plugin itself says later stands.

        For its Lease is looked at a little late.
        """
        node, since = world.gpu_nodes.get(name), world.silent[name]
        if node is None:
            return
        if self._silent.get(name) == since and not node.silent:
            return
        verdict = gone_verdict(world, name, since=since)
        if _differs(node.conditions, verdict, node.meta.generation):
            self._teller.tell(_gone(node.meta, verdict, since=since), now=world.now)
            self._write(
                GPU_NODES, node.meta, node.conditions, verdict, {}, now=world.now, force=True
            )
        self._silent[name] = since

    def after(self, world: World, state: plan.State) -> None:
        """What models, snapshots and tenants say, and tenants' tiers on their namespaces."""
        self._marks.write(world.tenants.values(), now=world.now)
        sessions, weights = sessions_by_model(world), weights_by_model(world)
        for model in world.models.values():
            name = model.meta.name
            verdict = model_verdict(
                world, model, sessions=sessions.get(name, ()), weights=weights.get(name, ())
            )
            self._write(MODELS, model.meta, model.conditions, verdict, {}, now=world.now)
        for snapshot in self._cache.snapshots.values().values():
            seen = world.sessions.get(f"{snapshot.meta.namespace}/{snapshot.session}")
            news = snapshot_verdict(snapshot, seen.session) if seen else None
            if news:
                old = snapshot.conditions
                self._write(SNAPSHOTS, snapshot.meta, old, news, {}, now=world.now)
        known = figures(state)
        broken = broken_promises(state)
        for tenant in world.tenants.values():
            if tenant.meta.name not in known:
                continue  # it came while the plan was carried out; the next pass knows it
            found = known[tenant.meta.name].to_raw()
            verdict = tenant_verdict(world, tenant, broken=broken.get(tenant.meta.name, ""))
            if verdict.reason == reasons.GUARANTEE_NOT_COVERED:
                self._teller.tell(_uncovered(tenant, verdict.message), now=world.now)
            if self._tenants.get(tenant.meta.uid) != found or _differs(
                tenant.conditions, verdict, tenant.meta.generation
            ):
                self._write(
                    TENANTS,
                    tenant.meta,
                    tenant.conditions,
                    verdict,
                    found,
                    now=world.now,
                    force=True,
                )
                self._tenants[tenant.meta.uid] = found

    def _write(
        self,
        kind: Kind,
        meta: ObjectMeta,
        old: tuple[Condition, ...],
        verdict: Verdict,
        numbers: Mapping[str, int],
        *,
        now: float,
        force: bool = False,
    ) -> None:
        if not force and not _differs(old, verdict, meta.generation):
            return
        ready = conditions.ready_condition(old, verdict, generation=meta.generation, now=now)
        namespace = {"namespace": meta.namespace} if kind.namespaced else {}
        body = {
            "metadata": {"name": meta.name, "uid": meta.uid, **namespace},
            "status": {"conditions": conditions_to_raw((ready,)), **numbers},
        }
        try:
            raw = self._api.apply(kind, body, subresource="status")
        except NotFoundError:
            log.info("%s %s was deleted meanwhile", kind.name, meta.name)
            return
        self._table(kind).offer(raw)

    def _table(self, kind: Kind) -> Table[Any]:
        tables: dict[Kind, Table[Any]] = {
            MODELS: self._cache.models,
            SNAPSHOTS: self._cache.snapshots,
            TENANTS: self._cache.tenants,
            GPU_NODES: self._cache.gpu_nodes,
        }
        return tables[kind]


def _differs(old: tuple[Condition, ...], verdict: Verdict, generation: int) -> bool:
    ready = next((entry for entry in old if entry.type == READY), None)
    if ready is None:
        return True
    found = (ready.status, ready.reason, ready.message, ready.observed_generation)
    return found != (verdict.status, verdict.reason, verdict.message, generation)


def _gone(meta: ObjectMeta, verdict: Verdict, *, since: str) -> Note:
    """Told once for each time that it falls silent; its return the plugin says itself."""
    subject = Subject.of(GPU_NODES.name, meta)
    text = verdict.message
    return Note(subject, verdict.reason, text, once_per=since, warning=True, same="")


def _uncovered(tenant: Tenant, text: str) -> Note:
    """Told once for what a Tenant asks, though the numbers change as GPUs come and go."""
    subject = Subject.of(TENANTS.name, tenant.meta)
    once = str(tenant.meta.generation)
    reason = reasons.GUARANTEE_NOT_COVERED
    return Note(subject, reason, text, once_per=once, warning=True, same="")
