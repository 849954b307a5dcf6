"""Carries out steps and orders: writes to the API server, in an order that survives any crash.

No decisions: what is written was computed by `life`, `ending` and `orders`. Each answer goes into
the cache, and each write is fenced. Errors are the loop's to handle, except refusals of a pod:
those are facts.
"""

import logging
from typing import Any

from sojourn_api.names import FINALIZER_POD, FINALIZER_SESSION, READY, pod_name
from sojourn_api.objects import Session, SessionStatus, Snapshot, SnapshotPolicy, SnapshotRef
from sojourn_api.render import conditions_to_raw, status_to_raw

from sojourn_operator import metrics, reasons
from sojourn_operator.act import pods, purges, snapshots
from sojourn_operator.act import status as conditions
from sojourn_operator.act.addresses import Addresses
from sojourn_operator.act.api import (
    REFUSED,
    Api,
    ApiError,
    ExistsError,
    NotFoundError,
    Raw,
    TerminatingError,
)
from sojourn_operator.act.events import Teller
from sojourn_operator.act.status import TRUE, Verdict
from sojourn_operator.config import Config
from sojourn_operator.kinds import PODS, SESSIONS, SNAPSHOTS
from sojourn_operator.plan import actions
from sojourn_operator.seen.cache import Cache
from sojourn_operator.seen.pod import Pod
from sojourn_operator.session import ending, life
from sojourn_operator.session.scene import Scene, Step

log = logging.getLogger(__name__)


class Hands:
    """Carries out what was decided for one session."""

    def __init__(
        self, api: Api, *, cache: Cache, teller: Teller, config: Config, addresses: Addresses
    ) -> None:
        self._api = api
        self._cache = cache
        self._teller = teller
        self._config = config
        self._addresses = addresses

    def carry_out(self, scene: Scene, step: Step, *, tenant: str = "") -> None:
        """One step; whatever of it is done already changes nothing."""
        session = scene.session
        if step.snapshot is not None:
            self._record(session, step.snapshot, now=scene.now)
        for note in step.notes:
            self._teller.tell(note, now=scene.now)
        self.write_status(session, step.status)
        for pod in step.delete:
            self._delete(pod)
        if step.create:
            self._start(scene, tenant=tenant)
        for pod in step.release:
            self._release(pod)
        if step.purge:
            self._purge(scene)
        if step.finish:
            self._finish(session, now=scene.now)

    def write_status(self, session: Session, status: SessionStatus) -> bool:
        """By server-side apply, if it differs from what is there; True if it did."""
        if status == session.status:
            return False
        wanted = status_to_raw(status)
        if wanted == status_to_raw(session.status):
            return False
        body = {"metadata": _identity(session), "status": wanted}
        self._cache.sessions.offer(self._api.apply(SESSIONS, body, subresource="status"))
        return True

    def hold(self, session: Session) -> None:
        """Our finalizer: from its first start on, a session is more than its object."""
        meta = session.meta
        if FINALIZER_SESSION not in meta.finalizers:
            wanted = [*meta.finalizers, FINALIZER_SESSION]
            raw = self._api.set_finalizers(
                SESSIONS, wanted, **_identity(session), held=meta.finalizers
            )
            self._cache.sessions.offer(raw)

    def create_early(self, session: Session) -> None:
        """The Service ahead of a first start; see `addresses`."""
        self._addresses.create_early(session)

    def retained_epoch(self, session: Session) -> int:
        """The last epoch that a snapshot of this session's name knows of; 0 without one."""
        return max((one.ref.epoch for one in self._snapshots_of(session)), default=0)

    def _manifest(self, session: Session) -> str:
        """The last manifest known: of the session, or of one of its name whose context was kept."""
        known = session.status.snapshot
        if known is None:
            kept = (one.ref for one in self._snapshots_of(session))
            known = max(kept, key=lambda ref: ref.epoch, default=None)
        return known.manifest if known else ""

    def release_orphan(self, pod: Pod) -> None:
        """A pod whose session is gone: nobody is left to tell how it ended."""
        self._release(pod)

    def _start(self, scene: Scene, *, tenant: str) -> None:
        session = scene.session
        model = self._cache.models.get(session.spec.model)
        tier = scene.tier
        placement = session.status.placement
        if model is None or tier is None or placement is None:
            reason = reasons.UNKNOWN_MODEL if model is None else actions.UNKNOWN_TIER
            what = f"LLMModel {session.spec.model} or QoSTier {session.spec.tier}"
            self._refused(scene, reason, f"{what} vanished before the start")
            return
        if not self._has_address(scene):
            return
        owner = self._cache.tenants.get(tenant)
        key = owner.api_key if owner else None
        start = pods.Start(
            session,
            model,
            tier,
            placement,
            session.status.epoch,
            tenant,
            key,
            self._manifest(session),
        )
        raw: Raw | None
        try:
            raw = self._api.create(PODS, pods.build(start, config=self._config))
        except ExistsError:
            raw = self._existing(scene)
        except ApiError as error:
            if error.status not in REFUSED:
                raise
            self._refused(scene, reasons.POD_REFUSED, error.message)
            return
        if raw is not None:
            metrics.ACTIONS.labels("start").inc()
            self._cache.pods.offer(raw)

    def _has_address(self, scene: Scene) -> bool:
        """Whether the session has its Service; if not, its start has failed."""
        try:
            if self._addresses.ensure(scene.session):
                return True
        except ApiError as error:
            if error.status not in REFUSED:
                raise
            self._refused(scene, reasons.POD_REFUSED, error.message)
            return False
        name = scene.session.meta.name
        text = f"a Service {name} exists that is not this session's; rename one of them"
        self._refused(scene, reasons.SERVICE_TAKEN, text)
        return False

    def _existing(self, scene: Scene) -> Raw | None:
        """The pod of this name: ours from before a crash, or a stranger's."""
        meta = scene.session.meta
        name = pod_name(meta.name, scene.status.epoch)
        raw = self._api.get(PODS, name=name, namespace=meta.namespace)
        owners = raw["metadata"].get("ownerReferences") or []
        if any(owner.get("uid") == meta.uid for owner in owners):
            return raw
        self._refused(
            scene, reasons.POD_REFUSED, f"a pod {name} exists that is not this session's; delete it"
        )
        return None

    def _refused(self, scene: Scene, reason: str, message: str) -> None:
        step = ending.refused(scene, reason, message)
        for note in step.notes:
            self._teller.tell(note, now=scene.now)
        self.write_status(scene.session, step.status)

    def _delete(self, pod: Pod) -> None:
        try:
            raw = self._api.delete(PODS, name=pod.name, uid=pod.uid, namespace=pod.namespace)
        except NotFoundError:
            self._cache.pods.forget(f"{pod.namespace}/{pod.name}", uid=pod.uid)
            return
        metrics.ACTIONS.labels("delete_pod").inc()
        if raw.get("kind") == "Pod":
            self._cache.pods.offer(raw)

    def _release(self, pod: Pod) -> None:
        rest = [name for name in pod.finalizers if name != FINALIZER_POD]
        key = f"{pod.namespace}/{pod.name}"
        try:
            raw = self._api.set_finalizers(
                PODS,
                rest,
                held=pod.finalizers,
                name=pod.name,
                uid=pod.uid,
                namespace=pod.namespace,
            )
        except NotFoundError:
            self._cache.pods.forget(key, uid=pod.uid)
            return
        meta = raw["metadata"]
        if (
            meta.get("deletionTimestamp")
            and not rest
            and not meta.get("deletionGracePeriodSeconds")
        ):
            self._cache.pods.forget(key, uid=pod.uid)
        else:
            self._cache.pods.offer(raw)

    def _record(self, session: Session, ref: SnapshotRef, *, now: float) -> None:
        """The snapshot's own object; the ones that it supersedes go."""
        built = snapshots.build(session, ref)
        # There already when an earlier try was cut off here: then its status may be missing.
        try:
            self._cache.snapshots.offer(self._api.create(SNAPSHOTS, built))
        except ExistsError:
            log.debug("snapshot %s is there already", ref.name)
        except TerminatingError as error:
            log.info("the namespace goes, and its snapshots with it: %s", error)
            return
        verdict = Verdict(READY, TRUE, reasons.SAVED, f"saved at {ref.uri}")
        ready = conditions.ready_condition((), verdict, generation=1, now=now)
        identity = {key: built["metadata"][key] for key in ("name", "namespace")}
        status = {"conditions": conditions_to_raw((ready,))}
        body = {"metadata": identity, "status": status}
        self._cache.snapshots.offer(self._api.apply(SNAPSHOTS, body, subresource="status"))
        for older in self._snapshots_of(session):
            if older.ref.epoch < ref.epoch:
                self._drop_snapshot(older.meta.name, older.meta.namespace, older.meta.uid)

    def _purge(self, scene: Scene) -> None:
        """Start the removal of what was saved; without it where the API server refuses the pod."""
        session = scene.session
        try:
            raw = self._api.create(PODS, purges.build(session, config=self._config))
        except ExistsError:
            meta = session.meta
            raw = self._api.get(PODS, name=purges.name(meta), namespace=meta.namespace)
        except ApiError as error:
            if error.status not in REFUSED:
                raise
            # So it is in a namespace that is being deleted.
            self._teller.tell(life.not_purged(scene, error.message), now=scene.now)
            self._finish(session, now=scene.now)
            return
        self._cache.pods.offer(raw)

    def _finish(self, session: Session, *, now: float) -> None:
        """Nothing of it runs any more: its snapshots by policy, then the object itself."""
        retain = session.spec.snapshot_policy is SnapshotPolicy.RETAIN
        known = session.status.snapshot
        if retain and known is not None:
            # One that no pause ended has none: then nothing would say whose the context is.
            self._record(session, known, now=now)
        for snapshot in self._snapshots_of(session):
            meta = snapshot.meta
            if retain:
                patch: dict[str, Any] = {"metadata": {"uid": meta.uid, "ownerReferences": None}}
                self._api.patch(SNAPSHOTS, patch, name=meta.name, namespace=meta.namespace)
            else:
                self._drop_snapshot(meta.name, meta.namespace, meta.uid)
        self._addresses.remove(session)
        key = f"{session.meta.namespace}/{session.meta.name}"
        held = session.meta.finalizers
        if FINALIZER_SESSION in held:
            rest = [name for name in held if name != FINALIZER_SESSION]
            try:
                self._api.set_finalizers(SESSIONS, rest, **_identity(session), held=held)
            except NotFoundError:
                log.info("session %s was gone already", key)
            metrics.ACTIONS.labels("finish").inc()
        self._cache.sessions.forget(key, uid=session.meta.uid)

    def _snapshots_of(self, session: Session) -> list[Snapshot]:
        return [
            snapshot
            for snapshot in self._cache.snapshots.values().values()
            if snapshot.session == session.meta.name
            and snapshot.meta.namespace == session.meta.namespace
        ]

    def _drop_snapshot(self, name: str, namespace: str, uid: str) -> None:
        try:
            self._api.delete(SNAPSHOTS, name=name, uid=uid, namespace=namespace)
        except NotFoundError:
            log.info("snapshot %s/%s was gone already", namespace, name)
        self._cache.snapshots.forget(f"{namespace}/{name}", uid=uid)


def _identity(session: Session) -> dict[str, str]:
    """Which object is meant: with its uid, so that no write meets a later one of its name."""
    meta = session.meta
    return {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
