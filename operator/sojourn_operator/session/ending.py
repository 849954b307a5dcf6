"""What the end of a session's pod means: paused with its context saved, failed, or lost.

Pure. Judged by the runtime's own report first, then by what asked for the end, then by the pod.
"""

import dataclasses
import re
from typing import Final, TypedDict

from sojourn_api.names import CONTEXT_SAVED, OFFENCES, PAUSED, PLACED, TARGET_MET
from sojourn_api.objects import Failure, SessionStatus, SnapshotRef
from sojourn_api.quantity import size

from sojourn_operator import clock, reasons
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import FALSE, TRUE, UNKNOWN, Verdict
from sojourn_operator.plan.words import counted
from sojourn_operator.seen.pod import Pod
from sojourn_operator.seen.report import End, parse_end
from sojourn_operator.session.hindrance import Hindrance
from sojourn_operator.session.note import Note, Subject
from sojourn_operator.session.remedies import (
    NODE_OUT_OF_MEMORY,
    OTHERWISE,
    filled,
    not_ready,
    remedied,
)
from sojourn_operator.session.scene import Scene, Step

BACK_OFF_SECONDS = 5.0
"""Before the second try; doubled with each failure in a row (as the kubelet does from 10 s)."""
MAX_BACK_OFF_SECONDS = 300.0
DISRUPTIONS = {
    "EvictionByEvictionAPI": reasons.EVICTED,
    "DeletionByTaintManager": reasons.NODE_DRAINING,
    "DeletionByPodGC": reasons.NODE_LOST,
    "TerminationByKubelet": reasons.NODE_PRESSURE,
}
"""Reasons of the pod condition DisruptionTarget."""
CALM_SECONDS = 60.0
"""A start that served for so long went well, and its failures are forgotten."""
UNASKED = frozenset({reasons.EVICTED, reasons.NODE_PRESSURE, reasons.POD_DELETED, reasons.ENDED})
CALM = frozenset({reasons.RUNNING, reasons.NOT_STARTED, conditions.PENDING})
"""Reasons of Paused=False under which no pause is under way."""
GONE: Final = frozenset({"SnapshotMissing", "SnapshotCorrupt"})
"""Failures that a runtime reports of the saved context itself; after all others it is intact."""
NO_CONTEXT = Verdict(CONTEXT_SAVED, FALSE, reasons.EMPTY, "there is no context yet")
_EMPTY = Verdict(CONTEXT_SAVED, TRUE, reasons.EMPTY, "there was no context to save")
NO_TRAFFIC: Final = Verdict(TARGET_MET, UNKNOWN, reasons.NO_TRAFFIC, "the session does not run")
OUT_OF_MEMORY: Final = "OOMKilled"
"""The kubelet's word."""
_NUMBERS: Final = re.compile(r"\d+")


def back_off(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(BACK_OFF_SECONDS * 2.0 ** max(failures - 1, 0), MAX_BACK_OFF_SECONDS)


def pause_reason(status: SessionStatus) -> str:
    """Why a pause is under way; empty if none is."""
    paused = conditions.of(status, PAUSED)
    return "" if paused.status == TRUE or paused.reason in CALM else paused.reason


def cause(pod: Pod, *, cordoned: bool) -> str:
    """Why a pod ends that we did not end."""
    found = DISRUPTIONS.get(pod.disruption, "")
    if found == reasons.NODE_PRESSURE and pod.reason == "Terminated":
        return reasons.NODE_SHUTDOWN
    if cordoned and found in ("", reasons.EVICTED):
        return reasons.NODE_DRAINING
    return found or (reasons.POD_DELETED if pod.deleting else reasons.ENDED)


def record(scene: Scene, pod: Pod) -> Step:
    """The step after `pod`, the present one, ended."""
    report = parse_end(pod.terminated.message) if pod.terminated else None
    asked = pause_reason(scene.status) or (
        cause(pod, cordoned=scene.cordoned) if pod.deleting else ""
    )
    if report is not None and report.saved:
        step = _saved(scene, report, asked=asked or cause(pod, cordoned=scene.cordoned))
    elif report is not None:
        step = _failed(scene, report.reason, report.message, retry=report.retry, report=report)
    elif pod.terminated is None and not pod.started:
        step = _never_ran(scene, pod, asked=asked)
    else:
        step = _silent(scene, pod, asked=asked)
    leave = (pod,) if step.status.failure is None and not pod.deleting else ()
    return dataclasses.replace(step, release=(pod,) if pod.held else (), delete=leave)


def not_started(scene: Scene) -> Step:
    """The step of a pause that came before the pod was there."""
    reason = pause_reason(scene.status) or reasons.DELETED
    return _paused_unserved(scene, reason, "it had not started")


def refused(scene: Scene, reason: str, message: str) -> Step:
    """The step after the API server would not take the pod of this start."""
    return _failed(scene, reason, message, retry=True)


def given_up(scene: Scene, pod: Pod, found: Hindrance) -> Step:
    """The step after a pod's container was kept from running for too long: its place is free."""
    step = _failed(scene, found.reason, found.message, retry=True)
    # The same event as while it was waited for.
    notes = tuple(dataclasses.replace(note, same=found.reason) for note in step.notes)
    return dataclasses.replace(step, notes=notes, delete=(pod,))


def lost(scene: Scene, reason: str, message: str) -> Step:
    """The step after the session's pod or node vanished: what was committed last is left."""
    runtime = scene.runtime
    known = runtime.snapshot if runtime and runtime.snapshot else scene.status.snapshot
    kept = "the last checkpoint and the journal in the store are found at the next start"
    saved = conditions.of(scene.status, CONTEXT_SAVED)
    if saved.reason not in GONE:
        saved = Verdict(CONTEXT_SAVED, UNKNOWN, reason, kept)
    status = dataclasses.replace(scene.status, snapshot=_named(scene, known), nomination=None)
    changed = _judged(
        scene,
        status,
        not_ready(reason, message),
        Verdict(PLACED, FALSE, reason, message),
        Verdict(PAUSED, FALSE, reasons.NOT_STARTED, message),
        saved,
    )
    present = scene.present
    gone = (present,) if present and not present.deleting else ()
    note = _note(scene, reason, message, warning=True)
    return Step(changed, notes=(note,), delete=gone)


def late(scene: Scene, pod: Pod) -> Step:
    """A pod whose session was taken for lost ended after all: perhaps it saved more."""
    report = parse_end(pod.terminated.message) if pod.terminated else None
    step = Step(scene.status, release=(pod,) if pod.held else ())
    if report is None or report.snapshot is None or not report.saved:
        return step
    ref = _named(scene, report.snapshot)
    status = dataclasses.replace(scene.status, snapshot=ref)
    if status == scene.status:
        return step
    verdict = _saved_verdict(report.snapshot)
    return dataclasses.replace(step, status=_judged(scene, status, verdict), snapshot=ref)


def _saved(scene: Scene, report: End, *, asked: str) -> Step:
    ref = _named(scene, report.snapshot)
    text = conditions.of(scene.status, PAUSED).message
    step = _paused(scene, asked, text, took=report.took)
    verdict = _saved_verdict(ref) if ref else _EMPTY
    status = dataclasses.replace(
        step.status,
        snapshot=ref or scene.status.snapshot,
        exact=report.exact,
        **_counted(scene, asked),
    )
    notes = [*step.notes, _note(scene, reasons.EVENT_CONTEXT_SAVED, verdict.message)]
    if report.damage:
        notes.append(damaged(scene, report.damage))
    status = _judged(scene, status, verdict)
    return dataclasses.replace(step, status=status, snapshot=ref, notes=tuple(notes))


def _counted(scene: Scene, reason: str) -> "_Count":
    """A start that was soon ended by no wish of ours counts as failed, or it would come and go.

    So does one that took more than it was granted, however long it ran: nothing says that it will
    not do it again.
    """
    ran = scene.now - clock.seconds(scene.status.started_at)
    text = "it was ended soon after its start, with its context saved"
    if reason in OFFENCES:
        text = conditions.of(scene.status, PAUSED).message
    elif reason not in UNASKED or ran >= CALM_SECONDS:
        return {"failures": 0, "failure": None}
    return {
        "failures": scene.status.failures + 1,
        "failure": _failure(scene, reason, text, retry=True),
    }


class _Count(TypedDict):
    failures: int
    failure: Failure | None


def _saved_verdict(ref: SnapshotRef) -> Verdict:
    text = f"{counted(ref.tokens, 'token')} of context"
    if ref.conversations:  # requests that belong to none have context too
        text += f" in {counted(ref.conversations, 'conversation')}"
    text += f", {size(ref.bytes)}, at {ref.uri}"
    return Verdict(CONTEXT_SAVED, TRUE, reasons.SAVED, text)


def _paused(scene: Scene, reason: str, message: str, *, took: str = "") -> Step:
    by = f" by {scene.status.preempted_by}" if scene.status.preempted_by else ""
    took = f"; {took}" if took else ""
    text = message or f"paused ({reason})"
    status = dataclasses.replace(scene.status, paused_at=clock.text(scene.now))
    changed = _judged(
        scene,
        status,
        filled(not_ready(reasons.PAUSED, text, cause=reason), scene.session.meta),
        Verdict(PLACED, FALSE, reason, text),
        Verdict(PAUSED, TRUE, reason, text),
    )
    return Step(changed, notes=(_note(scene, reasons.PAUSED, f"{reason}{by}{took}"),))


def _paused_unserved(scene: Scene, reason: str, message: str) -> Step:
    """A pause before this start answered anyone: what was saved before it is all there is."""
    step = _paused(scene, reason, message)
    return dataclasses.replace(step, status=_judged(scene, step.status, kept(scene)))


def kept(scene: Scene) -> Verdict:
    """What was saved before a start that has not answered anyone; what was found gone stays so.

    So does what nobody knows: a crash without a report, a node that is lost.
    """
    known = conditions.of(scene.status, CONTEXT_SAVED)
    if known.reason in {*GONE, reasons.NOT_STARTED} or (
        known.status == UNKNOWN and known.reason != conditions.PENDING
    ):
        return known
    saved = scene.status.snapshot
    return _saved_verdict(saved) if saved else _EMPTY


def _never_ran(scene: Scene, pod: Pod, *, asked: str) -> Step:
    if asked:
        return _paused_unserved(scene, asked, conditions.of(scene.status, PAUSED).message)
    reason = pod.reason or reasons.POD_REFUSED
    message = pod.message or "the kubelet did not run the pod"
    return _failed(scene, reason, message, retry=True)


def _silent(scene: Scene, pod: Pod, *, asked: str) -> Step:
    """The container ran and left no report: killed, or not our runtime."""
    if asked and not scene.status.started_at:
        # SIGTERM before the runtime's handler was there: the kubelet then has no report either.
        return _paused_unserved(scene, asked, conditions.of(scene.status, PAUSED).message)
    end = pod.terminated
    code = f"exit code {end.exit_code}" if end else "no exit code"
    why = end.reason if end and end.reason not in ("", "Error", "Completed") else ""
    reason = why or pod.reason or reasons.CRASHED
    message = f"the runtime ended without a report ({code}{', ' + why if why else ''})"
    cause = ""
    if reason == OUT_OF_MEMORY:
        message += f"; {_memory(pod)}"
        cause = "" if pod.memory_limit else NODE_OUT_OF_MEMORY
    step = _failed(scene, reason, message, retry=True, cause=cause)
    if asked:
        step = dataclasses.replace(step, notes=(*step.notes, _not_saved(scene, message)))
    return step


def _memory(pod: Pod) -> str:
    if pod.memory_limit:
        return f"its memory limit is {size(pod.memory_limit)}"
    return f"it has no memory limit, so node {pod.node} itself ran out"


def _not_saved(scene: Scene, message: str) -> Note:
    return _note(scene, reasons.EVENT_NOT_SAVED, message, warning=True)


def _failed(
    scene: Scene,
    reason: str,
    message: str,
    *,
    retry: bool,
    report: End | None = None,
    cause: str = "",
) -> Step:
    """`cause`: the finer reason that the remedy is for, where there is one."""
    message = remedied(cause or reason, message, otherwise="" if report else OTHERWISE)
    failures = scene.status.failures + 1
    wait = back_off(failures)
    then = (
        f"tries again in {wait:.0f} s (failure {failures} in a row)"
        if retry
        else "waits until the session or its model is changed"
    )
    text = f"{message}; {then}"
    failure = _failure(scene, reason, message, retry=retry)
    known = _named(scene, report.snapshot) if report and report.snapshot else None
    status = dataclasses.replace(
        scene.status,
        failures=failures,
        failure=failure,
        nomination=None,
        snapshot=known or scene.status.snapshot,
    )
    changed = _judged(
        scene,
        status,
        not_ready(reason, text, cause=cause, otherwise=""),
        Verdict(PLACED, FALSE, reason, text),
        Verdict(PAUSED, FALSE, reasons.NOT_STARTED, "it ended by a failure, not by a pause"),
        _left(scene, reason, report=report, known=status.snapshot),
    )
    return Step(changed, notes=(_told(scene, f"{reason}: {message}"),))


def _left(scene: Scene, reason: str, *, report: End | None, known: SnapshotRef | None) -> Verdict:
    """What a failure leaves of the context; one before the first answer changes nothing of it."""
    if report is None and scene.status.started_at:
        last = "the last commit in the store counts"
        return Verdict(CONTEXT_SAVED, UNKNOWN, reasons.NO_REPORT, last)
    if report is None or (not scene.status.started_at and reason not in GONE):
        seen = report is not None and report.snapshot is not None
        return _saved_verdict(known) if seen and known else kept(scene)
    text = f"last saved: {_saved_verdict(known).message}" if known else "nothing was saved before"
    return Verdict(CONTEXT_SAVED, FALSE, reason, text)


def damaged(scene: Scene, text: str) -> Note:
    """A spoilt part of the saved context, once per start though more of it may be found."""
    note = _note(scene, reasons.EVENT_DAMAGED, text, warning=True)
    return dataclasses.replace(note, same="")


def _told(scene: Scene, text: str) -> Note:
    """A failure as an event: one for all tries, though the file it names has the try's number."""
    note = _note(scene, reasons.EVENT_FAILED, text, warning=True)
    return dataclasses.replace(note, same=_NUMBERS.sub("", text))


def _failure(scene: Scene, reason: str, message: str, *, retry: bool) -> Failure:
    return Failure(
        reason=reason,
        message=message,
        retry=retry,
        at=clock.text(scene.now),
        generation=scene.session.meta.generation,
        model_generation=scene.model_generation,
    )


def _judged(scene: Scene, status: SessionStatus, *verdicts: Verdict) -> SessionStatus:
    generation = scene.session.meta.generation
    return conditions.judged(status, NO_TRAFFIC, *verdicts, generation=generation, now=scene.now)


def _named(scene: Scene, ref: SnapshotRef | None) -> SnapshotRef | None:
    if ref is None:
        return None
    name = f"{scene.session.meta.name}-{ref.epoch or scene.status.epoch}"
    return dataclasses.replace(ref, name=name)


def _note(scene: Scene, reason: str, message: str, *, warning: bool = False) -> Note:
    subject = Subject.of("LLMSession", scene.session.meta)
    return Note(subject, reason, message, once_per=str(scene.status.epoch), warning=warning)
