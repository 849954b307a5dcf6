"""A world that does what plans say: for simulations, benchmarks of churn, and tests of the plan.

Pods start and end after fixed times; nothing fails. It stands for the shell and the cluster, so it
decides nothing itself.
"""

from collections.abc import Iterable
from dataclasses import replace

from sojourn_operator.plan.actions import (
    Action,
    Move,
    Nominate,
    Pause,
    PlaceSession,
    Resume,
    Withdraw,
)
from sojourn_operator.plan.state import (
    Defrag,
    Node,
    Nomination,
    Phase,
    Place,
    Session,
    State,
    Tenant,
    Tier,
)


class World:
    """Mutable nodes and sessions under a clock that only `advance` moves."""

    def __init__(
        self,
        *,
        nodes: Iterable[Node],
        tiers: Iterable[Tier],
        tenants: Iterable[Tenant] = (),
        start_seconds: float = 2.0,
        stop_seconds: float = 3.0,
        defrag: Defrag | None = None,
    ) -> None:
        self.now = 0.0
        self.nodes = {node.name: node for node in nodes}
        self.sessions: dict[str, Session] = {}
        self.tiers = {tier.name: tier for tier in tiers}
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.start_seconds = start_seconds
        self.stop_seconds = stop_seconds
        self.defrag = defrag or Defrag()

    def state(self) -> State:
        """What a plan would see now."""
        return State(
            now=self.now,
            nodes=dict(self.nodes),
            sessions=dict(self.sessions),
            tiers=dict(self.tiers),
            tenants=dict(self.tenants),
            defrag=self.defrag,
        )

    def put(self, session: Session) -> None:
        """Add a session or replace it."""
        self.sessions[session.key] = session

    def end(self, key: str) -> None:
        """Delete a session: at once without a pod, else when its pod has ended."""
        session = self.sessions[key]
        if session.phase in (Phase.STARTING, Phase.RUNNING, Phase.PAUSING):
            self.put(replace(session, deleting=True, nomination=None))
        else:
            del self.sessions[key]

    def do(self, actions: Iterable[Action]) -> None:
        """Carry actions out, in order; what is done already changes nothing."""
        for action in actions:
            match action:
                case PlaceSession(session=key, place=place) | Resume(session=key, place=place):
                    self._start(key, place)
                case Nominate(session=key, nomination=nomination):
                    self._nominate(key, nomination)
                case Withdraw(session=key):
                    self._nominate(key, None)
                case Pause(session=key):
                    self._stop(key)
                case Move(session=key, nomination=nomination):
                    self._nominate(key, nomination)
                    self._stop(key)
                case _:
                    pass

    def advance(self, seconds: float) -> None:
        """Let time pass: pods become ready, pods end."""
        self.now += seconds
        for session in list(self.sessions.values()):
            waited = self.now - session.since
            if session.phase is Phase.STARTING and waited >= self.start_seconds:
                self.put(replace(session, phase=Phase.RUNNING, since=self.now))
            elif session.phase is Phase.PAUSING and waited >= self.stop_seconds:
                if session.deleting:
                    del self.sessions[session.key]
                else:
                    self.put(replace(session, phase=Phase.PAUSED, since=self.now))

    def _start(self, key: str, place: Place) -> None:
        session = self.sessions.get(key)
        if session is not None and session.phase in (Phase.WAITING, Phase.PAUSED):
            self.put(
                replace(session, phase=Phase.STARTING, place=place, since=self.now, nomination=None)
            )

    def _stop(self, key: str) -> None:
        session = self.sessions.get(key)
        if session is not None and session.phase in (Phase.STARTING, Phase.RUNNING):
            self.put(replace(session, phase=Phase.PAUSING, since=self.now))

    def _nominate(self, key: str, nomination: Nomination | None) -> None:
        session = self.sessions.get(key)
        if session is not None:
            self.put(replace(session, nomination=nomination))
