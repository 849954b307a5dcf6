"""A session, its pods and their kubelet as values, for tests of the pure parts of the operator.

`Pretend.settle` carries out looks in the order of `act.apply`, and can be cut anywhere, as by a
kill.
"""

import dataclasses
import json
from typing import Any

from sojourn_api.names import FINALIZER_POD
from sojourn_api.objects import (
    GpuPlace,
    LatencyMetric,
    ObjectMeta,
    Offender,
    Session,
    SessionPlacement,
    SessionSpec,
    SessionStatus,
    SnapshotRef,
    Tier,
)
from sojourn_operator.act.status import of
from sojourn_operator.seen.pod import Pod, Terminated
from sojourn_operator.session import life, orders
from sojourn_operator.session.scene import Runtime, Scene, Step

CREATED = "2026-01-01T00:00:00Z"
TIER = Tier(
    ObjectMeta("silver", "", "uid-silver", 1, CREATED),
    priority=500,
    guaranteed_share=1000,
    target_p95_ms=350,
    target_metric=LatencyMetric.TIME_TO_FIRST_TOKEN,
    pausable_by=("gold",),
)


def session(**spec: Any) -> Session:
    meta = ObjectMeta("chat", "team", "uid-chat", 1, CREATED)
    return Session(meta, SessionSpec(model="smollm2", tier="silver", **spec))


def place(node: str = "node-a") -> SessionPlacement:
    return SessionPlacement(node, (GpuPlace(0, "GPU-0", "A100-80GB", 12, 100),))


def pod(epoch: int, **changes: Any) -> Pod:
    found = Pod(
        name=f"chat-{epoch}",
        namespace="team",
        uid=f"uid-chat-{epoch}",
        session="chat",
        owner_uid="uid-chat",
        epoch=epoch,
        node="",
        phase="Pending",
        created=1000.0,
        ready=False,
        ready_since=0.0,
        ready_message="",
        finalizers=(FINALIZER_POD,),
        deleted_at=None,
        grace=0,
        ip="",
        reason="",
        message="",
        disruption="",
        unschedulable="",
        waiting="",
        started=False,
        terminated=None,
        labels={"app": "chat"},
        slices={0: 12},
    )
    return dataclasses.replace(found, **changes)


def report(epoch: int, **changes: Any) -> str:
    snapshot = {"uri": "file:///store/chat", "tokens": 100, "bytes": 5000, "epoch": epoch}
    said = {"v": 1, "reason": "Paused", "message": "saved", "snapshot": snapshot, "exact": True}
    return json.dumps(said | changes)


class KilledError(Exception):
    """The operator ends here."""


class Pretend:
    """One session's objects, and the operator's and the kubelet's hands on them."""

    def __init__(
        self, found: Session | None = None, *, cuts: list[int] | None = None, purges: bool = True
    ) -> None:
        self.purges = purges
        self.session = found or session()
        self.pods: dict[str, Pod] = {}
        self.snapshots: dict[str, SnapshotRef] = {}
        self.events: set[tuple[str, str, str]] = set()
        self.told: set[tuple[str, str]] = set()
        """What `act.events` would tell: names of events, and what raised their counts."""
        self.created: list[str] = []
        self.purged = False
        self.purge: Pod | None = None
        self.gone = False
        self.now = 1000.0
        self.lost: frozenset[str] = frozenset()
        self.offence: Offender | None = None
        self.runtime: Runtime | None = None
        """What polls say of the present start."""
        self._cuts = cuts or []
        self._done = 0

    @property
    def status(self) -> SessionStatus:
        return self.session.status

    def says(self, kind: str) -> tuple[str, str]:
        found = of(self.status, kind)
        return found.status, found.reason

    def look(self) -> Step:
        return life.look(
            Scene(
                self.session,
                now=self.now,
                pods=tuple(self.pods.values()),
                tier=TIER,
                lost_nodes=self.lost,
                offence=self.offence,
                node_state="ready",
                runtime=self.runtime,
                purges=self.purges,
                purge=self.purge,
            )
        )

    def settle(self) -> None:
        """Look until nothing is left to do; a kill in between is followed by a new operator."""
        for _ in range(50):
            before = self._facts()
            try:
                self._carry_out(self.look())
            except KilledError:
                continue
            if self.gone or self._facts() == before:
                return
        raise AssertionError("it never settles")

    def place(self, node: str = "node-a") -> None:
        if not orders.is_placed(self.session):
            status = orders.placed(self.session, place(node), message="", now=self.now)
            self._write(status)
        self.settle()

    def pause(self, *, by: str = "team/golden", reason: str = "PreemptedByGold") -> None:
        status = orders.told_to_pause(
            self.session, by=by, reason=reason, message=f"for {by}", now=self.now
        )
        self._write(status)
        self.settle()

    def delete(self) -> None:
        meta = dataclasses.replace(self.session.meta, deleting=True)
        self.session = dataclasses.replace(self.session, meta=meta)
        self.settle()

    def run_pods(self) -> None:
        """The kubelet starts what is bound and new."""
        for name, found in self.pods.items():
            if found.phase == "Pending" and not found.deleting:
                self.pods[name] = dataclasses.replace(
                    found,
                    phase="Running",
                    node="node-a",
                    ready=True,
                    started=True,
                    ready_since=self.now,
                )
        self.settle()

    def end_pods(self, message: str | None = None, *, code: int = 0) -> None:
        """The kubelet ends what was deleted, with what the runtime reports."""
        for name, found in self.pods.items():
            if found.deleting and found.phase in ("Pending", "Running"):
                self.pods[name] = self._ended(found, message, code)
        self.settle()

    def crash_pods(self, message: str | None = None, *, code: int = 1) -> None:
        """Running containers end by themselves."""
        for name, found in self.pods.items():
            if found.phase == "Running":
                text = message if message is not None else ""
                self.pods[name] = self._ended(found, text, code)
        self.settle()

    def _ended(self, found: Pod, message: str | None, code: int) -> Pod:
        text = report(found.epoch) if message is None else message
        ended = Terminated(code, "Completed" if code == 0 else "Error", text)
        phase = "Succeeded" if code == 0 else "Failed"
        ran = found.started
        return dataclasses.replace(
            found, phase=phase, ready=False, terminated=ended if ran else None
        )

    def _carry_out(self, step: Step) -> None:
        if step.snapshot is not None:
            self._tick()
            self.snapshots.setdefault(step.snapshot.name, step.snapshot)
        for note in step.notes:
            self._tick()
            self.events.add((note.reason, note.message, note.once_per))
            self.told.add((note.name, note.once_per))
        self._write(step.status)
        for found in step.delete:
            self._tick()
            self._delete(found)
        if step.create:
            self._tick()
            new = pod(self.status.epoch)
            assert new.name not in self.created, "one start has one pod"
            self.created.append(new.name)
            self.pods[new.name] = new
        for found in step.release:
            self._tick()
            self._release(found)
        if step.purge:
            self._tick()
            self.purge = pod(0, name="chat-purge", phase="Succeeded", finalizers=())
            self.purged = True
        if step.finish:
            self._tick()
            self.gone = True

    def _write(self, status: SessionStatus) -> None:
        if status != self.session.status:
            self._tick()
            self.session = dataclasses.replace(self.session, status=status)

    def _tick(self) -> None:
        """One write to the API server; the operator may be killed before it."""
        self._done += 1
        if self._done in self._cuts:
            raise KilledError

    def _delete(self, found: Pod) -> None:
        known = self.pods.get(found.name)
        if known is None or known.deleting:
            return
        self.pods[found.name] = dataclasses.replace(known, deleted_at=self.now + 30, grace=30)
        self._collect(found.name)

    def _release(self, found: Pod) -> None:
        known = self.pods.get(found.name)
        if known is not None:
            self.pods[found.name] = dataclasses.replace(known, finalizers=())
            self._collect(found.name)

    def _collect(self, name: str) -> None:
        """The API server forgets what is deleted, has ended and is held by nobody."""
        found = self.pods[name]
        if found.deleting and not found.finalizers and found.ended(self.now):
            del self.pods[name]

    def _facts(self) -> object:
        return self.status, dict(self.pods), dict(self.snapshots), self.purged, self.gone
