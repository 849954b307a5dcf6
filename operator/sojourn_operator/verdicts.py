"""What the Ready condition of models, snapshots and tenants says. Pure.

No one here looks at a file or a store: that is told by the last session that did.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sojourn_api.gpus import WORKSPACE_BYTES
from sojourn_api.names import CONTEXT_SAVED, READY
from sojourn_api.objects import Model, Session, Snapshot, Tenant
from sojourn_api.quantity import size
from sojourn_api.weights import Numbers

from sojourn_operator import clock, reasons
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import FALSE, TRUE, UNKNOWN, Verdict
from sojourn_operator.plan import actions
from sojourn_operator.plan.words import counted
from sojourn_operator.seen.world import World, tenants_by_namespace
from sojourn_operator.session import doubts, ending

OF_THE_FILE: Final = frozenset(
    {
        "ModelNotFound",
        "WeightsTruncated",
        "UnknownWeightsFormat",
        "WeightsDigestMismatch",
        "UnsupportedModel",
        reasons.MODEL_MISMATCH,
    }
)
"""Failures that a runtime reports of the weights: no session of the model would fare better."""


def sessions_by_model(world: World) -> Mapping[str, list[Session]]:
    """All sessions, by the model that they name."""
    found: dict[str, list[Session]] = {}
    for seen in world.sessions.values():
        found.setdefault(seen.session.spec.model, []).append(seen.session)
    return found


def weights_by_model(world: World) -> Mapping[str, frozenset[Numbers]]:
    """What the weights say of themselves, as far as a runtime has them open."""
    found: dict[str, set[Numbers]] = {}
    for pod in world.pods.values():
        runtime, seen = world.runtimes.get(pod.uid), world.sessions.get(pod.key)
        if seen is not None and runtime is not None and runtime.weights is not None:
            found.setdefault(seen.session.spec.model, set()).add(runtime.weights)
    return {name: frozenset(numbers) for name, numbers in found.items()}


def model_verdict(
    world: World,
    model: Model,
    *,
    sessions: Iterable[Session] = (),
    weights: Collection[Numbers] = (),
) -> Verdict:
    """Whether any GPU of the cluster could hold the weights, and whether they were good lately.

    `weights` is what those who have them open say.
    """
    bad = _bad_file(model, tuple(sessions))
    if bad is not None:
        return bad
    differ = _differ(model, weights)
    if differ is not None and differ.status == FALSE:
        return differ
    gpus = [gpu for node in world.gpu_nodes.values() for gpu in node.gpus if gpu.healthy]
    if not gpus:
        text = "no GPUNode has a healthy GPU yet; is the device plugin running?"
        return Verdict(READY, UNKNOWN, reasons.NO_GPU, text)
    need = max(model.weight_bytes + WORKSPACE_BYTES, model.minimum_gpu_bytes)
    most = max(gpu.slices * gpu.slice_bytes for gpu in gpus)
    if need > most:
        text = f"needs {size(need)} on one GPU; the largest has {size(most)} in service"
        text += "; add a larger GPU, or take smaller weights (spec.quantization, another file)"
        return Verdict(READY, FALSE, reasons.TOO_LARGE, text)
    return differ or Verdict(READY, TRUE, reasons.USABLE, "sessions may use it")


def _differ(model: Model, weights: Collection[Numbers]) -> Verdict | None:
    """What the model says otherwise than its weights; kept while nobody has them open."""
    if not weights:
        old = next((one for one in model.conditions if one.type == READY), None)
        if old is None or old.observed_generation != model.meta.generation:
            return None
        kept = old.reason == reasons.NUMBERS_DIFFER
        return Verdict(READY, old.status, old.reason, old.message) if kept else None
    found = (doubts.mismatch(model, numbers) for numbers in weights)
    wrong = [doubt for doubt in found if doubt is not None]
    if not wrong:
        return None
    doubt = min(wrong, key=lambda one: (one.reason != reasons.MODEL_MISMATCH, one.message))
    status = FALSE if doubt.reason == reasons.MODEL_MISMATCH else TRUE
    return Verdict(READY, status, doubt.reason, doubt.message)


def _bad_file(model: Model, sessions: tuple[Session, ...]) -> Verdict | None:
    """What the latest start found wrong with the weights; a later one that answered ends it.

    It stays when the session that found it goes, until the model is changed.
    """
    found: list[tuple[float, Verdict]] = []
    answered = [clock.seconds(session.status.started_at) for session in sessions]
    for old in (one for one in model.conditions if one.type == READY):
        since = clock.seconds(old.last_transition)
        if old.status == TRUE:
            answered.append(since - 1)  # whole seconds: a start in the same one may be later
        elif old.reason in OF_THE_FILE and old.observed_generation == model.meta.generation:
            found.append((since, Verdict(READY, FALSE, old.reason, old.message)))
    for session in sessions:
        failure = session.status.failure
        if failure is None or failure.model_generation != model.meta.generation:
            continue
        if failure.reason in OF_THE_FILE:
            where = f"a start in namespace {session.meta.namespace}"
            text = f"{where} ended: {failure.message}"
            found.append((clock.seconds(failure.at), Verdict(READY, FALSE, failure.reason, text)))
    at, verdict = max(found, key=lambda one: one[0], default=(0.0, None))
    return verdict if at > max(answered, default=0.0) else None


def snapshot_verdict(snapshot: Snapshot, session: Session) -> Verdict | None:
    """Whether its session found it when it looked last; None if that says nothing new."""
    saved = conditions.of(session.status, CONTEXT_SAVED)
    if saved.reason in ending.GONE:
        failure = session.status.failure
        told = failure is not None and failure.reason == saved.reason
        text = failure.message if failure is not None and told else saved.message
        return Verdict(READY, FALSE, saved.reason, text)
    if session.status.started_at:
        return Verdict(READY, TRUE, reasons.SAVED, f"saved at {snapshot.ref.uri}")
    return None


def gone_verdict(world: World, name: str, *, since: str) -> Verdict:
    """Of a node whose device plugin is silent `since`: nobody knows how its GPUs are."""
    node, then = world.nodes.get(name), "nothing new is placed here"
    told = f"its device plugin was last heard of at {since}, and all else here is of then"
    if node is not None and node.ready:
        hint = f"see kubectl get pods -A -o wide --field-selector spec.nodeName={name}"
        return Verdict(READY, UNKNOWN, reasons.PLUGIN_GONE, f"{told}; {then}; {hint}")
    state = f"is not ready since {clock.text(node.changed)}" if node else "does not exist"
    text = f"node {name} {state}; {told}; {then}; see kubectl describe node {name}"
    return Verdict(READY, UNKNOWN, reasons.NODE_NOT_READY, text)


def tenant_verdict(world: World, tenant: Tenant, *, broken: str) -> Verdict:
    """Whether it owns what it names; `broken`: which promise to it no GPU covers."""
    owners = tenants_by_namespace(world.tenants.values())
    lost = [name for name in tenant.namespaces if owners[name].meta.name != tenant.meta.name]
    if lost:
        owner = owners[lost[0]].meta.name
        text = (
            f"namespace {lost[0]} belongs to the older Tenant {owner}; remove it from one of them"
        )
        return Verdict(READY, FALSE, reasons.NAMESPACE_TAKEN, text)
    missing = [name for name in tenant.tiers if name not in world.tiers]
    if missing:
        text = f"spec.tiers names {missing[0]}, which is no QoSTier; create it, or remove it here"
        return Verdict(READY, FALSE, actions.UNKNOWN_TIER, text)
    if broken and not any(node.gpus for node in world.gpu_nodes.values()):
        return Verdict(READY, UNKNOWN, reasons.NO_GPU, f"{broken}; no GPUNode has a GPU yet")
    if broken:
        hint = "add GPUs, or lower spec.guarantees of a Tenant"
        return Verdict(READY, FALSE, reasons.GUARANTEE_NOT_COVERED, f"{broken}; {hint}")
    return Verdict(READY, TRUE, reasons.ACTIVE, counted(len(tenant.namespaces), "namespace"))
