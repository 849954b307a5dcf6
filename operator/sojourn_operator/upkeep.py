"""What the operator keeps in order besides sessions: shipped tiers, status of models and tenants.

Written only where something changed. Neither placement nor pods are known here.
"""

import logging
from collections.abc import Mapping
from typing import Any

from sojourn_api.gpus import WORKSPACE_BYTES
from sojourn_api.names import READY
from sojourn_api.objects import Condition, Model, ObjectMeta, Tenant
from sojourn_api.render import conditions_to_raw, tier_to_raw
from sojourn_api.shipped import SHIPPED_TIERS

from sojourn_operator import plan
from sojourn_operator.act import status as conditions
from sojourn_operator.act.api import Api, ConflictError
from sojourn_operator.act.status import FALSE, TRUE, UNKNOWN, Verdict
from sojourn_operator.cache import Cache, Table
from sojourn_operator.figures import figures
from sojourn_operator.kinds import MODELS, TENANTS, TIERS, Kind
from sojourn_operator.namespaces import TierMarks
from sojourn_operator.plan import actions
from sojourn_operator.plan.words import size as plan_size
from sojourn_operator.world import World, tenants_by_namespace

log = logging.getLogger(__name__)


class Upkeep:
    """Done by the leader in each pass."""

    def __init__(self, api: Api, *, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self._shipped = False
        self._tenants: dict[str, dict[str, Any]] = {}
        self._marks = TierMarks(api)

    def before(self, world: World) -> None:
        """The shipped tiers, once after this replica began to lead; a deleted one stays deleted."""
        if self._shipped:
            return
        for tier in SHIPPED_TIERS:
            if tier.meta.name in world.tiers:
                continue
            try:
                self._cache.tiers.offer(self._api.create(TIERS, tier_to_raw(tier)))
            except ConflictError:
                log.info("tier %s was just created by someone else", tier.meta.name)
        self._shipped = True

    def after(self, world: World, state: plan.State) -> None:
        """Conditions of models; figures of tenants, and their tiers on their namespaces."""
        self._marks.write(world.tenants.values(), now=world.now)
        for model in world.models.values():
            verdict = _model_verdict(world, model)
            self._write(MODELS, model.meta, model.conditions, verdict, {}, now=world.now)
        known = figures(state)
        for tenant in world.tenants.values():
            if tenant.meta.name not in known:
                continue  # it came while the plan was carried out; the next pass knows it
            found = known[tenant.meta.name].to_raw()
            verdict = _tenant_verdict(world, tenant)
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
        body = {
            "metadata": {"name": meta.name, "uid": meta.uid},
            "status": {"conditions": conditions_to_raw((ready,)), **numbers},
        }
        try:
            raw = self._api.apply(kind, body, subresource="status")
        except ConflictError:
            log.info("%s %s was deleted meanwhile", kind.name, meta.name)
            return
        self._table(kind).offer(raw)

    def _table(self, kind: Kind) -> Table[Any]:
        return self._cache.models if kind is MODELS else self._cache.tenants


def _differs(old: tuple[Condition, ...], verdict: Verdict, generation: int) -> bool:
    ready = next((entry for entry in old if entry.type == READY), None)
    if ready is None:
        return True
    found = (ready.status, ready.reason, ready.message, ready.observed_generation)
    return found != (verdict.status, verdict.reason, verdict.message, generation)


def _model_verdict(world: World, model: Model) -> Verdict:
    """Whether any GPU of the cluster could hold the weights; each session asks for its context."""
    gpus = [gpu for node in world.gpu_nodes.values() for gpu in node.gpus if gpu.healthy]
    if not gpus:
        text = "no GPUNode has a healthy GPU yet; is the device plugin running?"
        return Verdict(READY, UNKNOWN, "NoGPU", text)
    need = model.weight_bytes + WORKSPACE_BYTES
    most = max(gpu.slices * gpu.slice_bytes for gpu in gpus)
    need = max(need, model.minimum_gpu_bytes)
    if need > most:
        text = f"needs {plan_size(need)} on one GPU; the largest has {plan_size(most)} in service"
        return Verdict(READY, FALSE, "TooLarge", text)
    return Verdict(READY, TRUE, "Usable", "sessions may use it")


def _tenant_verdict(world: World, tenant: Tenant) -> Verdict:
    owners = tenants_by_namespace(world.tenants.values())
    lost = [name for name in tenant.namespaces if owners[name].meta.name != tenant.meta.name]
    if lost:
        owner = owners[lost[0]].meta.name
        text = (
            f"namespace {lost[0]} belongs to the older Tenant {owner}; remove it from one of them"
        )
        return Verdict(READY, FALSE, "NamespaceTaken", text)
    missing = [name for name in tenant.tiers if name not in world.tiers]
    if missing:
        text = f"spec.tiers names {missing[0]}, which is no QoSTier; see kubectl get qostiers"
        return Verdict(READY, FALSE, actions.UNKNOWN_TIER, text)
    return Verdict(READY, TRUE, "Active", f"{len(tenant.namespaces)} namespaces")
