"""One look at a session: what its pod's state means for its status, and what has to be done.

Pure, level-triggered: a look depends on what is, never on what happened, and may be taken twice.
Where a session goes is decided in `plan`; what an ended pod means in `ending`.
"""

import dataclasses

from sojourn_api.names import CONTEXT_SAVED, PAUSED, PLACED, READY, TARGET_MET
from sojourn_api.objects import SessionPlacement, SessionStatus, SnapshotPolicy

from sojourn_operator import clock, ending, reasons
from sojourn_operator.act import purges
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import FALSE, TRUE, UNKNOWN, Verdict
from sojourn_operator.note import Note, Subject
from sojourn_operator.pod import Pod
from sojourn_operator.scene import Scene, Step


def look(scene: Scene) -> Step:
    """The next step of this session."""
    placed = conditions.of(scene.status, PLACED)
    step = _placed(scene, reason=placed.reason) if placed.status == TRUE else _unplaced(scene)
    return _with_leftovers(scene, step)


def where(placement: SessionPlacement) -> str:
    """A place in words: `node-b gpu-1 (A100-80GB), 14 slices`."""
    gpus = " ".join(f"gpu-{gpu.ordinal}" for gpu in placement.gpus)
    models = ", ".join(dict.fromkeys(gpu.model for gpu in placement.gpus if gpu.model))
    slices = sum(gpu.slices for gpu in placement.gpus)
    kind = f" ({models})" if models else ""
    return f"{placement.node} {gpus}{kind}, {slices} slice{'' if slices == 1 else 's'}"


def _placed(scene: Scene, *, reason: str) -> Step:
    pod = scene.present
    if pod is None:
        return _without_pod(scene, reason=reason)
    if pod.ended(scene.now):
        return ending.record(scene, pod)
    if scene.lost:
        message = f"node {_node(scene)} has not been ready for too long; the session moves on"
        return ending.lost(scene, reasons.NODE_LOST, message)
    leaving = _leaving(scene, pod)
    if leaving:
        return _pausing(scene, pod, reason=leaving)
    return _serving(scene, pod) if pod.ready else _starting(scene, pod)


def _without_pod(scene: Scene, *, reason: str) -> Step:
    if ending.pause_reason(scene.status) or scene.session.meta.deleting:
        return ending.not_started(scene)
    if reason == reasons.PLACING:
        return Step(scene.status, create=True)
    return ending.lost(scene, reasons.POD_LOST, "its pod vanished without a trace of its end")


def _leaving(scene: Scene, pod: Pod) -> str:
    """Why its pod is ending or has to; empty if it may stay."""
    asked = ending.pause_reason(scene.status)
    if asked:
        return asked
    if scene.session.meta.deleting:
        return reasons.DELETED
    return ending.cause(pod, cordoned=scene.cordoned) if pod.deleting else ""


def _unplaced(scene: Scene) -> Step:
    """No start is under way: the present epoch's pod, if there is one, has been dealt with."""
    pod = scene.present
    if pod is None:
        return Step(scene.status)
    if not pod.ended(scene.now):
        return Step(scene.status, delete=() if pod.deleting else (pod,))
    if pod.held:
        return ending.late(scene, pod)
    # A failed pod is kept for its logs until the next start, or until the session shall rest.
    rests = scene.session.spec.suspend and not pod.deleting
    return Step(scene.status, delete=(pod,) if rests else ())


def _with_leftovers(scene: Scene, step: Step) -> Step:
    """Pods of earlier starts: dead ones go, living ones are told to end."""
    older = [pod for pod in scene.pods if pod.epoch != scene.status.epoch]
    ended = tuple(pod for pod in older if pod.held and pod.ended(scene.now))
    delete = tuple(pod for pod in older if not pod.deleting)
    rest = [pod for pod in scene.pods if _remains(scene, pod)]
    placed = conditions.of(step.status, PLACED).status == TRUE
    step = dataclasses.replace(step, release=step.release + ended, delete=step.delete + delete)
    if not scene.session.meta.deleting or rest or placed:
        return step
    return _last(scene, step)


def _last(scene: Scene, step: Step) -> Step:
    """Nothing of a deleted session runs: its saved context goes, if it shall, and then itself."""
    keeps = scene.session.spec.snapshot_policy is SnapshotPolicy.RETAIN
    if keeps or not scene.purges or not scene.status.epoch:
        return _finished(scene, step)
    pod = scene.purge
    if pod is None:
        return dataclasses.replace(step, purge=True)
    give_up = pod.created + purges.SECONDS
    if pod.phase == "Succeeded":
        return _finished(scene, step)
    if pod.phase != "Failed" and scene.now < give_up:
        return dataclasses.replace(step, deadline=give_up)
    text = f"the pod {pod.name} ended as {pod.phase} {pod.reason} {pod.message}".rstrip()
    step = dataclasses.replace(step, notes=(*step.notes, not_purged(scene, text)))
    return _finished(scene, step)


def _finished(scene: Scene, step: Step) -> Step:
    """Its dead pods go at once: a session created anew under the name may use theirs."""
    pods = (*scene.pods, scene.purge) if scene.purge else scene.pods
    left = tuple(pod for pod in pods if not pod.deleting and pod not in step.delete)
    return dataclasses.replace(step, delete=step.delete + left, finish=True)


def not_purged(scene: Scene, why: str) -> Note:
    """A saved context outlives its session against its policy: somebody has to know."""
    meta = scene.session.meta
    subject = Subject.of("LLMSession", meta)
    folder = f"{meta.namespace}/{meta.name}"
    text = f"the saved context in {folder} of the store is left, remove it by hand: {why}"
    once = str(scene.status.epoch)
    return Note(subject, reasons.EVENT_NOT_PURGED, text, once_per=once, warning=True)


def _remains(scene: Scene, pod: Pod) -> bool:
    """Whether a deleted session has to wait for this pod; nothing is heard from a lost node."""
    return pod.held if pod.ended(scene.now) else pod.node not in scene.lost_nodes


def pausing(scene: Scene, *, reason: str, message: str) -> SessionStatus:
    """The status that records a pause before its pod is told to end."""
    ready = Verdict(READY, FALSE, reasons.PAUSING, message)
    return _judged(scene, scene.status, ready, Verdict(PAUSED, FALSE, reason, message))


def _pausing(scene: Scene, pod: Pod, *, reason: str) -> Step:
    known = conditions.of(scene.status, PAUSED)
    message = known.message if known.reason == reason else _why(scene, pod, reason)
    status = pausing(scene, reason=reason, message=message)
    return Step(status, delete=() if pod.deleting else (pod,))


def _why(scene: Scene, pod: Pod, reason: str) -> str:
    texts = {
        reasons.DELETED: "the session is deleted",
        reasons.NODE_DRAINING: f"node {_node(scene)} is drained",
        reasons.EVICTED: "its pod was evicted",
        reasons.POD_DELETED: "its pod was deleted by someone else",
        reasons.NODE_PRESSURE: f"node {_node(scene)} ended the pod: {pod.message}",
    }
    return texts.get(reason, f"its pod is ending ({reason})")


def _serving(scene: Scene, pod: Pod) -> Step:
    status = scene.status
    first = not status.started_at
    if first:
        status = dataclasses.replace(status, started_at=clock.text(pod.ready_since or scene.now))
    calm_at = clock.seconds(status.started_at) + ending.CALM_SECONDS
    deadline = None
    if status.failure is not None:
        if scene.now >= calm_at:
            status = dataclasses.replace(status, failures=0, failure=None)
        else:
            deadline = calm_at
    runtime = scene.runtime
    if runtime is not None:
        status = dataclasses.replace(status, exact=runtime.exact)
    text = f"answers at {status.endpoint}"
    notes = [_started(scene)] if first else []
    if runtime is not None and not runtime.exact:
        text += f"; not exact: {runtime.exact_reason}"
        notes.append(_not_exact(scene, runtime.exact_reason))
    status = _judged(scene, status, Verdict(READY, TRUE, reasons.SERVING, text), *_up(scene))
    return Step(status, notes=tuple(notes), deadline=deadline)


def _not_exact(scene: Scene, why: str) -> Note:
    subject = Subject.of("LLMSession", scene.session.meta)
    once = str(scene.status.epoch)
    return Note(subject, reasons.EVENT_NOT_EXACT, why, once_per=once, warning=True)


def _starting(scene: Scene, pod: Pod) -> Step:
    if scene.status.started_at and pod.started:
        text = pod.ready_message or "its readiness probe fails"
        ready = Verdict(READY, FALSE, reasons.NOT_ANSWERING, text)
        return Step(_judged(scene, scene.status, ready, *_up(scene)))
    give_up = pod.created + scene.pending_seconds
    if not pod.node and pod.unschedulable and scene.now >= give_up:
        return _pausing_unschedulable(scene, pod)
    reason, _, _ = pod.waiting.partition(":")
    ready = Verdict(READY, FALSE, reason or reasons.STARTING, _start_text(scene, pod))
    status = _judged(scene, scene.status, ready, *_up(scene))
    return Step(status, deadline=give_up if not pod.node else None)


def _pausing_unschedulable(scene: Scene, pod: Pod) -> Step:
    seconds = scene.now - pod.created
    message = f"not scheduled to {_node(scene)} in {seconds:.0f} s: {pod.unschedulable}"
    status = pausing(scene, reason=reasons.UNSCHEDULABLE, message=message)
    return Step(status, delete=(pod,))


def _start_text(scene: Scene, pod: Pod) -> str:
    if pod.waiting:
        return pod.waiting
    if pod.unschedulable:
        return f"not scheduled yet: {pod.unschedulable}"
    if scene.runtime is not None and scene.runtime.phase:
        return f"{scene.runtime.phase.lower()} on {_node(scene)}"
    return f"the pod starts on {_node(scene)}"


def _up(scene: Scene) -> tuple[Verdict, ...]:
    """What holds of every session with a living pod that nobody wants to end."""
    placement = scene.status.placement
    saved = "what is not checkpointed yet is in memory; a pause saves it"
    return (
        Verdict(PLACED, TRUE, reasons.PLACED, f"on {where(placement)}" if placement else ""),
        Verdict(PAUSED, FALSE, reasons.RUNNING, "no pause is under way"),
        Verdict(CONTEXT_SAVED, FALSE, reasons.UNSAVED, saved),
        _target(scene),
    )


def _target(scene: Scene) -> Verdict:
    if scene.tier is None or not scene.tier.target_p95_ms:
        return Verdict(TARGET_MET, UNKNOWN, reasons.NO_TARGET, "its tier has no latency target")
    if scene.runtime is not None and scene.runtime.target is not None:
        return scene.runtime.target
    return Verdict(TARGET_MET, UNKNOWN, reasons.NO_TRAFFIC, "too few requests to judge")


def _started(scene: Scene) -> Note:
    status = scene.status
    subject = Subject.of("LLMSession", scene.session.meta)
    place = f"on {where(status.placement)}" if status.placement else ""
    if status.snapshot is None:
        reason, text = reasons.EVENT_STARTED, f"answers {place}"
    else:
        reason = reasons.EVENT_RESUMED
        text = f"answers again {place}, with {status.snapshot.tokens} tokens of context"
    return Note(subject, reason, text, once_per=str(status.epoch))


def _node(scene: Scene) -> str:
    return scene.status.placement.node if scene.status.placement else "?"


def _judged(scene: Scene, status: SessionStatus, *verdicts: Verdict) -> SessionStatus:
    generation = scene.session.meta.generation
    return conditions.judged(status, *verdicts, generation=generation, now=scene.now)
