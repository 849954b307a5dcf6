"""Plays sessions that arrive, run for a while and end, and samples what runs, waits and is
paused.

Event by event on a clock of its own, with the same plan as the operator. No files and no output
here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

from sojourn_operator.plan.actions import DELETED, Action, Move, Pause, PlaceSession, Resume
from sojourn_operator.plan.board import inside
from sojourn_operator.plan.measure import Fill, fill_of
from sojourn_operator.plan.mix import Flow, mix_of
from sojourn_operator.plan.planner import Planner
from sojourn_operator.plan.play import World
from sojourn_operator.plan.state import Mix, Phase, Place, Session


@dataclass(frozen=True, slots=True)
class Job:
    """A session that comes at `arrival` and ends after running for `duration` seconds in all."""

    session: Session
    arrival: float
    duration: float
    there: bool = False
    """It is on its way already: phase, place and times are as they stand, on the world's clock."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. Each session that has come is counted once; `done` are those that have ended."""

    time: float
    running: int
    waiting: int
    paused: int
    done: int
    fill: Fill


@dataclass(slots=True)
class Fate:
    """What became of one session: how often it was paused for another, how often it started again
    at another place than before, and how long it waited in all.
    """

    tier: str
    started: float | None = None
    ended: float | None = None
    pauses: int = 0
    moves: int = 0
    waited: float = 0.0
    last: str = ""


@dataclass(slots=True)
class Simulation:
    """`run` yields a sample every so often; `fates` is complete when it has ended."""

    world: World
    jobs: list[Job]
    every: float
    until: float = inf
    planner: Planner = field(default_factory=Planner)
    fates: dict[str, Fate] = field(default_factory=dict)
    _left: dict[str, float] = field(default_factory=dict)
    _mix: Mix = field(default_factory=Mix)
    _flow: Flow = field(default_factory=Flow)

    def run(self) -> Iterator[Sample]:
        """Play until every job has ended, nothing more can happen, or `until`."""
        coming = sorted(self.jobs, key=lambda job: (job.arrival, job.session.key), reverse=True)
        self._mix = mix_of(job.session.request for job in self.jobs)
        sample_at = 0.0
        while self.world.now <= self.until:
            while coming and coming[-1].arrival <= self.world.now:
                self._arrive(coming.pop())
            deadline = self._plan()
            if self.world.now >= sample_at:
                yield self._sample()
                sample_at = self.world.now + self.every
            step = min(self._next(deadline), coming[-1].arrival if coming else inf)
            if step == inf:
                break
            self._pass(max(step - self.world.now, 0.001))
        yield self._sample()

    def _arrive(self, job: Job) -> None:
        now = self.world.now
        session = job.session
        if not job.there:
            session = replace(session, created=now, since=now, phase=Phase.WAITING)
        self.world.put(session)
        self._left[session.key] = job.duration
        runs = session.phase is Phase.RUNNING
        self.fates[session.key] = Fate(session.tier, started=now if runs else None)

    def _plan(self) -> float:
        state = self.world.state()
        passing = self._flow.look(inside(state.sessions))
        if passing is not self._mix.passing:
            self._mix = replace(self._mix, passing=passing)
        found = self.planner.plan(replace(state, mix=self._mix))
        for action in found.actions:
            fate = self.fates.get(action.session)
            if fate is None:
                continue
            if action.reason != DELETED:
                fate.last = action.message
            if isinstance(action, Pause):
                fate.pauses += bool(action.by)
            fate.moves += self._elsewhere(action)
        self._leave_early(found.actions)
        self.world.do(found.actions)
        return inf if found.next_deadline is None else found.next_deadline

    def _elsewhere(self, action: Action) -> bool:
        """Whether it starts a session at another place than the one that it held before."""
        if not isinstance(action, PlaceSession | Resume):
            return False
        before = self.world.sessions[action.session].place
        return before is not None and _spot(before) != _spot(action.place)

    def _leave_early(self, actions: Iterable[object]) -> None:
        """Take what a paused session has run off what it has left to run."""
        for action in actions:
            if isinstance(action, Pause | Move):
                session = self.world.sessions[action.session]
                if session.phase is Phase.RUNNING:
                    self._left[session.key] -= self.world.now - session.since

    def _next(self, deadline: float) -> float:
        """The next moment at which anything happens by itself."""
        found = deadline if deadline > self.world.now else inf
        for key, session in self.world.sessions.items():
            if session.phase is Phase.RUNNING:
                found = min(found, session.since + max(self._left.get(key, inf), 0.0))
            elif session.phase is Phase.STARTING:
                found = min(found, session.since + self.world.start_seconds)
            elif session.phase is Phase.PAUSING:
                found = min(found, session.since + self.world.stop_seconds)
        return found

    def _pass(self, seconds: float) -> None:
        for key, session in self.world.sessions.items():
            if session.phase in (Phase.WAITING, Phase.PAUSED):
                self.fates[key].waited += seconds
        self.world.advance(seconds)
        now = self.world.now
        for key, session in list(self.world.sessions.items()):
            if session.phase is not Phase.RUNNING:
                continue
            fate = self.fates[key]
            fate.started = now if fate.started is None else fate.started
            if not session.deleting and now - session.since >= self._left[key] - 1e-6:
                fate.ended = now
                self.world.end(key)

    def _sample(self) -> Sample:
        # A deleted session's pod may still be ending; the session itself is done.
        phases = [one.phase for one in self.world.sessions.values() if not one.deleting]
        return Sample(
            time=self.world.now,
            running=phases.count(Phase.RUNNING) + phases.count(Phase.STARTING),
            waiting=phases.count(Phase.WAITING) + phases.count(Phase.FAILED),
            paused=phases.count(Phase.PAUSED) + phases.count(Phase.PAUSING),
            done=len(self.fates) - len(phases),
            fill=fill_of(self.planner.board.placer, self._mix),
        )


def _spot(place: Place) -> tuple[str, ...]:
    """Which GPUs, whatever is taken of them."""
    return (place.node, *(str(use.ordinal) for use in place.gpus))
