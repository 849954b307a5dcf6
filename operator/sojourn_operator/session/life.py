"""One look at a session: what its pod's state means for its status, and what has to be done.

Pure, level-triggered: a look depends on what is, never on what happened, and may be taken twice.
Where a session goes is decided in `plan`; what an ended pod means in `ending`.
"""

import dataclasses

from sojourn_api.names import CONTEXT_SAVED, PAUSED, PLACED, READY, TARGET_MET
from sojourn_api.objects import SessionPlacement, SessionStatus, SnapshotPolicy

from sojourn_operator import clock, reasons
from sojourn_operator.act import purges, services
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import FALSE, TRUE, UNKNOWN, Verdict
from sojourn_operator.plan.words import counted
from sojourn_operator.seen.pod import Pod
from sojourn_operator.session import ending, hindrance
from sojourn_operator.session.note import Note, Subject
from sojourn_operator.session.remedies import not_ready
from sojourn_operator.session.scene import Doubt, Scene, Step


def look(scene: Scene) -> Step:
    """The next step of this session."""
    scene = _with_its_traces(_with_its_address(scene))
    placed = conditions.of(scene.status, PLACED)
    step = _placed(scene, reason=placed.reason) if placed.status == TRUE else _unplaced(scene)
    return _with_leftovers(scene, step)


def _with_its_address(scene: Scene) -> Scene:
    """The endpoint follows from the session's name, whatever somebody has written there."""
    session = scene.session
    own = services.endpoint(session) if session.status.epoch else ""
    if session.status.endpoint == own:
        return scene
    return _with(scene, dataclasses.replace(session.status, endpoint=own))


def _with_its_traces(scene: Scene) -> Scene:
    """From its first container on there may be something of it in the store."""
    if not (never_ran(scene.status) and any(pod.touched for pod in scene.pods)):
        return scene
    return _with(scene, _judged(scene, scene.status, ending.NO_CONTEXT))


def _with(scene: Scene, status: SessionStatus) -> Scene:
    return dataclasses.replace(scene, session=dataclasses.replace(scene.session, status=status))


def never_ran(status: SessionStatus) -> bool:
    """Whether no start came so far that the store could have a folder of the session."""
    return conditions.of(status, CONTEXT_SAVED).reason == reasons.NOT_STARTED


def where(placement: SessionPlacement) -> str:
    """A place in words: `node-b gpu-1 (A100-80GB), 14 slices`."""
    gpus = " ".join(f"gpu-{gpu.ordinal}" for gpu in placement.gpus)
    models = ", ".join(dict.fromkeys(gpu.model for gpu in placement.gpus if gpu.model))
    slices = sum(gpu.slices for gpu in placement.gpus)
    kind = f" ({models})" if models else ""
    return f"{placement.node} {gpus}{kind}, {counted(slices, 'slice')}"


def _placed(scene: Scene, *, reason: str) -> Step:
    pod = scene.present
    if pod is None:
        return _without_pod(scene, reason=reason)
    if pod.ended(scene.now):
        return ending.record(scene, pod)
    if scene.lost:
        message = f"its node {_node(scene)} is {scene.node_state}; the session moves on"
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
    if scene.offence is not None and scene.offence.stop:
        return scene.offence.reason
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
    if not scene.session.meta.deleting:
        return step
    if rest or placed:
        return _deleting(scene, step, f"the end of its pod {', '.join(pod.name for pod in rest)}")
    return _last(scene, step)


def _deleting(scene: Scene, step: Step, awaited: str) -> Step:
    ready = not_ready(reasons.DELETING, f"the session is deleted, and waits for {awaited}".rstrip())
    return dataclasses.replace(step, status=_judged(scene, step.status, ready))


def _last(scene: Scene, step: Step) -> Step:
    """Nothing of a deleted session runs: its saved context goes, if it shall, and then itself."""
    keeps = scene.session.spec.snapshot_policy is SnapshotPolicy.RETAIN
    if keeps or not scene.status.epoch or never_ran(scene.status):
        return _finished(scene, step)
    if not scene.purges:
        text = "the operator empties no bucket; a session made anew under the name clears it"
        step = dataclasses.replace(step, notes=(*step.notes, not_purged(scene, text)))
        return _finished(scene, step)
    pod, name = scene.purge, purges.name(scene.session.meta)
    waits = _deleting(scene, step, f"the pod {name}, which removes its saved context")
    if pod is None:
        return dataclasses.replace(waits, purge=True)
    give_up = pod.created + purges.SECONDS
    if pod.phase == "Succeeded":
        return _finished(scene, step)
    if pod.phase != "Failed" and scene.now < give_up:
        return dataclasses.replace(waits, deadline=give_up)
    step = dataclasses.replace(step, notes=(*step.notes, not_purged(scene, _purge_failed(pod))))
    return _finished(scene, step)


def _purge_failed(pod: Pod) -> str:
    found = hindrance.of(pod, node=pod.node or "any node")
    if pod.phase == "Failed":
        how = f"ended as {pod.phase} {pod.reason} {pod.message}".rstrip()
    else:
        how = f"did not {'end' if pod.started else 'start'} in {purges.SECONDS} s"
    return f"the pod {pod.name} {how}{': ' + found.message if found else ''}"


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
    ready = not_ready(reasons.PAUSING, message)
    return _judged(scene, scene.status, ready, Verdict(PAUSED, FALSE, reason, message))


def _pausing(scene: Scene, pod: Pod, *, reason: str) -> Step:
    known = conditions.of(scene.status, PAUSED)
    message = known.message if known.reason == reason else _why(scene, pod, reason)
    status = pausing(scene, reason=reason, message=message)
    return Step(status, notes=_offends(scene), delete=() if pod.deleting else (pod,))


def _why(scene: Scene, pod: Pod, reason: str) -> str:
    if scene.offence is not None and scene.offence.reason == reason:
        return scene.offence.message
    texts = {
        reasons.DELETED: "the session is deleted",
        reasons.NODE_DRAINING: f"node {_node(scene)} is drained",
        reasons.EVICTED: "its pod was evicted",
        reasons.POD_DELETED: "its pod was deleted by someone else",
        reasons.NODE_PRESSURE: f"node {_node(scene)} ended the pod: {pod.message}",
    }
    return texts.get(reason, f"its pod is ending ({reason})")


def _serving(scene: Scene, pod: Pod) -> Step:
    length = pod.context_length or scene.status.context_length
    status = dataclasses.replace(scene.status, context_length=length)
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
    for doubt in scene.doubts:
        text += f"; {doubt.message}"
        notes.append(_doubted(scene, doubt))
    if runtime is not None and runtime.damage:
        notes.append(ending.damaged(scene, runtime.damage))
    ready = _stuck(scene) or Verdict(READY, TRUE, reasons.SERVING, text)
    status = _judged(scene, status, ready, *_up(scene, served=True))
    return Step(status, notes=(*notes, *_offends(scene)), deadline=deadline)


def _offends(scene: Scene) -> tuple[Note, ...]:
    """What is held against its pod, once for each start; whether it is paused for it or not."""
    if scene.offence is None:
        return ()
    subject = Subject.of("LLMSession", scene.session.meta)
    once, offence = str(scene.status.epoch), scene.offence
    note = Note(subject, offence.reason, offence.message, once_per=once, warning=True, same="")
    return (note,)


def _not_exact(scene: Scene, why: str) -> Note:
    subject = Subject.of("LLMSession", scene.session.meta)
    once = str(scene.status.epoch)
    return Note(subject, reasons.EVENT_NOT_EXACT, why, once_per=once, warning=True)


def _doubted(scene: Scene, doubt: Doubt) -> Note:
    """Once for each text or what it has in common with others: who changes numbers hears of it."""
    subject = Subject.of("LLMSession", scene.session.meta)
    once = str(scene.status.epoch)
    reason, text = doubt.reason, doubt.message
    return Note(subject, reason, text, once_per=once, warning=True, same=doubt.same)


def _stuck(scene: Scene) -> Verdict | None:
    """What polls found of a runtime that its kubelet may take for ready, or hears no more of."""
    runtime = scene.runtime
    if runtime is not None and runtime.silent:
        text = f"no answer to {runtime.silent}; node {_node(scene)} is {scene.node_state}"
        return not_ready(reasons.NOT_ANSWERING, text)
    if runtime is not None and runtime.stalled:
        text = f"the engine stands still: it waits for {runtime.stalled}"
        return not_ready(reasons.ENGINE_STALLED, text)
    return None


def _starting(scene: Scene, pod: Pod) -> Step:
    if scene.status.started_at and pod.started:
        text = pod.ready_message or "its readiness probe fails"
        ready = _stuck(scene) or not_ready(reasons.NOT_ANSWERING, text)
        return Step(_judged(scene, scene.status, ready, *_up(scene, served=True)))
    found = hindrance.of(pod, node=_node(scene))
    patience = pod.created + scene.pending_seconds
    if found and (found.hopeless or scene.now >= patience):
        return ending.given_up(scene, pod, found)
    give_up = patience if found else None
    told = conditions.of(scene.status, PLACED).reason == reasons.PLACING
    shown = found if found and found.early else None
    if told and pod.phase == "Pending" and shown is None:
        # Its status says so since it was placed; a write for each step of a start is too many.
        return Step(scene.status, deadline=give_up)
    reason = shown.early if shown else reasons.STARTING
    ready = not_ready(reason, shown.message if shown else _start_text(scene))
    status = _judged(scene, scene.status, ready, *_up(scene, served=False))
    notes = (_kept_waiting(scene, ready),) if reason != reasons.STARTING else ()
    return Step(status, notes=notes, deadline=give_up)


def _kept_waiting(scene: Scene, ready: Verdict) -> Note:
    """What keeps its container from running, once for each start though the kubelet tries on."""
    subject = Subject.of("LLMSession", scene.session.meta)
    once, text = str(scene.status.epoch), f"{ready.reason}: {ready.message}"
    reason = reasons.EVENT_FAILED
    return Note(subject, reason, text, once_per=once, warning=True, same=ready.reason)


def _start_text(scene: Scene) -> str:
    if scene.runtime is not None and scene.runtime.phase:
        return f"{scene.runtime.phase.lower()} on {_node(scene)}"
    return f"the pod starts on {_node(scene)}"


def _up(scene: Scene, *, served: bool) -> tuple[Verdict, ...]:
    """What holds of every session with a living pod that nobody wants to end."""
    saved = "what is not checkpointed yet is in memory; a pause saves it"
    placement = scene.status.placement
    return (
        Verdict(PLACED, TRUE, reasons.PLACED, f"on {where(placement)}" if placement else ""),
        Verdict(PAUSED, FALSE, reasons.RUNNING, "no pause is under way"),
        Verdict(CONTEXT_SAVED, FALSE, reasons.UNSAVED, saved) if served else _at_start(scene),
        _target(scene),
    )


def _at_start(scene: Scene) -> Verdict:
    """Of a session that does not answer yet: nothing of it is in memory alone."""
    if scene.status.snapshot is None and not never_ran(scene.status):
        return ending.NO_CONTEXT
    return ending.kept(scene)


def _target(scene: Scene) -> Verdict:
    if scene.tier is None or not scene.tier.target_p95_ms:
        return Verdict(TARGET_MET, UNKNOWN, reasons.NO_TARGET, "its tier has no latency target")
    if scene.runtime is not None and scene.runtime.silent:
        return Verdict(TARGET_MET, UNKNOWN, reasons.NOT_ANSWERING, "nobody can ask how fast it is")
    if scene.runtime is not None and scene.runtime.target is not None:
        return scene.runtime.target
    return Verdict(TARGET_MET, UNKNOWN, reasons.NO_TRAFFIC, "too few requests lately to judge")


def _started(scene: Scene) -> Note:
    status = scene.status
    subject = Subject.of("LLMSession", scene.session.meta)
    place = f"on {where(status.placement)}" if status.placement else ""
    if status.snapshot is None:
        reason, text = reasons.EVENT_STARTED, f"answers {place}"
    else:
        reason = reasons.EVENT_RESUMED
        text = f"answers again {place}, with {counted(status.snapshot.tokens, 'token')} of context"
    return Note(subject, reason, text, once_per=str(status.epoch))


def _node(scene: Scene) -> str:
    return scene.status.placement.node if scene.status.placement else "?"


def _judged(scene: Scene, status: SessionStatus, *verdicts: Verdict) -> SessionStatus:
    generation = scene.session.meta.generation
    return conditions.judged(status, *verdicts, generation=generation, now=scene.now)
