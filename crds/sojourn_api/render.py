"""From the frozen values of `objects` to what the API server takes: the way back from `parse`.

What is absent or empty is left out: under server-side apply an owned field that is left out is
removed, so a rendered status is always the whole truth of its owner. No API calls here.
"""

from collections.abc import Iterable, Mapping

from sojourn_api.names import API_VERSION, PLACED, READY
from sojourn_api.objects import (
    AllocatorUse,
    Condition,
    Failure,
    Gpu,
    GpuLoad,
    GpuNode,
    GpuPlace,
    Model,
    Nomination,
    ObjectMeta,
    Offender,
    Quota,
    SecretKey,
    Session,
    SessionPlacement,
    SessionSpec,
    SessionStatus,
    Snapshot,
    SnapshotRef,
    Stranded,
    Tenant,
    Tier,
)

Raw = dict[str, object]

NEVER = "1970-01-01T00:00:00Z"
"""The transition time of a condition that nobody has judged yet, as the CRDs default it."""
MAX_MESSAGE = 4096
"""The CRDs' bound; a longer message is cut, since a status that is refused tells nothing."""


def session_to_raw(session: Session) -> Raw:
    """An LLMSession with its status."""
    raw = _object("LLMSession", session.meta)
    raw["spec"] = _session_spec(session.spec)
    raw["status"] = status_to_raw(session.status)
    return raw


def status_to_raw(status: SessionStatus) -> Raw:
    """`LLMSession.status`, with the scalars that `kubectl get` shows in columns."""
    return _filled(
        {
            "epoch": status.epoch,
            "conditions": conditions_to_raw(status.conditions),
            "placement": status.placement and _placement(status.placement),
            "nomination": status.nomination and _nomination(status.nomination),
            "snapshot": status.snapshot and _status_snapshot(status.snapshot),
            "preemptedBy": status.preempted_by,
            "pausedAt": status.paused_at,
            "startedAt": status.started_at,
            "endpoint": status.endpoint,
            "exact": status.exact,
            "contextLength": status.context_length or None,
            "failures": status.failures,
            "failure": status.failure and _failure(status.failure),
        }
        | _columns(status)
    )


def conditions_to_raw(conditions: Iterable[Condition]) -> list[Raw]:
    """`status.conditions`, in the given order."""
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": _clipped(condition.message),
            "observedGeneration": condition.observed_generation,
            "lastTransitionTime": condition.last_transition or NEVER,
        }
        for condition in conditions
    ]


def model_to_raw(model: Model) -> Raw:
    """An LLMModel."""
    raw = _object("LLMModel", model.meta)
    raw["spec"] = _filled(
        {
            "uri": model.uri,
            "digest": model.digest,
            "quantization": model.quantization,
            "weightBytes": model.weight_bytes,
            "kvBytesPerToken": model.kv_bytes_per_token,
            "layers": model.layers,
            "heads": model.heads,
            "kvHeads": model.kv_heads,
            "contextLength": model.context_length,
            "decodeFraction": model.decode_fraction,
            "minimumGpuBytes": model.minimum_gpu_bytes,
        }
    )
    return raw | _condition_status(model.conditions)


def tier_to_raw(tier: Tier) -> Raw:
    """A QoSTier."""
    raw = _object("QoSTier", tier.meta)
    spec: Raw = {
        "priority": tier.priority,
        "guaranteedShare": tier.guaranteed_share,
        "pausableBy": list(tier.pausable_by),
        "minRunSeconds": tier.min_run_seconds,
        "coolDownSeconds": tier.cool_down_seconds,
        "timeSliceMilliseconds": tier.time_slice_ms,
    }
    if tier.target_p95_ms:
        spec["target"] = {
            "p95Milliseconds": tier.target_p95_ms,
            "metric": tier.target_metric.value,
        }
    raw["spec"] = spec
    return raw


def tenant_to_raw(tenant: Tenant) -> Raw:
    """A Tenant."""
    raw = _object("Tenant", tenant.meta)
    raw["spec"] = _filled(
        {
            "namespaces": list(tenant.namespaces),
            "tiers": list(tenant.tiers),
            "guarantees": [
                {"tier": tier, "share": share} for tier, share in tenant.guarantees.items()
            ],
            "weight": tenant.weight,
            "quota": _quota(tenant.quota),
            "apiKeySecretRef": tenant.api_key and _secret_key(tenant.api_key),
        }
    )
    return raw | _condition_status(tenant.conditions)


def gpu_node_to_raw(node: GpuNode) -> Raw:
    """A GPUNode, without the sums over its GPUs: those are the device plugin's to compute."""
    raw = _object("GPUNode", node.meta)
    raw["status"] = _filled(
        {
            "driverVersion": node.driver_version,
            "gpus": [gpu_to_raw(gpu) for gpu in node.gpus],
            "stranded": stranded_to_raw(node.stranded),
            "offenders": offenders_to_raw(node.offenders),
            "conditions": conditions_to_raw(node.conditions),
        }
    )
    return raw


def stranded_to_raw(stranded: Iterable[Stranded]) -> list[Raw]:
    """`GPUNode.status.stranded`."""
    return [{"size": entry.size, "slices": entry.slices} for entry in stranded]


def offenders_to_raw(offenders: Iterable[Offender]) -> list[Raw]:
    """`GPUNode.status.offenders`."""
    return [
        {
            "namespace": one.namespace,
            "pod": one.pod,
            "uid": one.uid,
            "reason": one.reason,
            "message": one.message,
            "stop": one.stop,
        }
        for one in offenders
    ]


def gpu_to_raw(gpu: Gpu) -> Raw:
    """One entry of `GPUNode.status.gpus`; zero and false are facts here, and are sent.

    What is unknown is left out.
    """
    raw: Raw = {
        "ordinal": gpu.ordinal,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memoryBytes": gpu.memory_bytes,
        "sliceBytes": gpu.slice_bytes,
        "slices": gpu.slices,
        "freeSlices": gpu.free_slices,
        "healthy": gpu.healthy,
        "reason": gpu.reason,
        "foreignBytes": gpu.foreign_bytes,
        "mig": gpu.mig,
        "links": list(gpu.links),
        "share": gpu.share,
    }
    known: Raw = {
        "foreignBy": list(gpu.foreign_by),
        "load": _load(gpu.load),
        "profiles": [
            {"profile": room.profile, "remaining": room.remaining, "ideal": room.ideal}
            for room in gpu.profiles
        ],
        "allocators": [_allocator(use) for use in gpu.allocators],
    }
    return raw | {name: value for name, value in known.items() if value}


def _load(load: GpuLoad) -> Raw:
    figures = {
        "busyPercent": load.busy,
        "smPercent": load.sm,
        "bandwidthPercent": load.bandwidth,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _allocator(use: AllocatorUse) -> Raw:
    figures = {
        "reservedBytes": use.reserved,
        "usedBytes": use.used,
        "inactiveSplitBytes": use.inactive_split,
        "largestFreeBytes": use.largest_free,
    }
    known: Raw = {name: value for name, value in figures.items() if value is not None}
    return {"pod": use.pod} | known


def snapshot_to_raw(snapshot: Snapshot) -> Raw:
    """A SessionSnapshot."""
    raw = _object("SessionSnapshot", snapshot.meta)
    raw["spec"] = {"session": snapshot.session, **_snapshot(snapshot.ref)}
    return raw | _condition_status(snapshot.conditions)


def _object(kind: str, meta: ObjectMeta) -> Raw:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": _meta(meta)}


def _meta(meta: ObjectMeta) -> Raw:
    return _filled(
        {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "generation": meta.generation or None,
            "creationTimestamp": meta.created,
            "deletionTimestamp": meta.created if meta.deleting else None,
            "resourceVersion": meta.resource_version,
            "finalizers": list(meta.finalizers),
            "labels": dict(meta.labels),
            "annotations": dict(meta.annotations),
        }
    )


def _session_spec(spec: SessionSpec) -> Raw:
    return _filled(
        {
            "model": spec.model,
            "tier": spec.tier,
            "contextLength": spec.context_length,
            "resources": _filled(
                {
                    "slices": spec.resources.slices,
                    "share": spec.resources.share,
                    "maxShards": spec.resources.max_shards,
                }
            ),
            "placement": _filled(
                {
                    "gpuModels": list(spec.placement.gpu_models),
                    "nodeSelector": dict(spec.placement.node_selector),
                    "spreading": spec.placement.spreading.value,
                }
            ),
            "suspend": spec.suspend,
            "idle": {
                "afterSeconds": spec.idle_after_seconds,
                "action": spec.idle_action.value,
            },
            "snapshot": {
                "policy": spec.snapshot_policy.value,
                "checkpointTokens": spec.checkpoint_tokens,
            },
            "apiKeySecretRef": spec.api_key and _secret_key(spec.api_key),
            "template": dict(spec.template),
        }
    )


def _columns(status: SessionStatus) -> Raw:
    """READY, REASON, NODE and GPU: a column shows the first match of a path only."""
    ready = _condition(status.conditions, READY)
    placed = _condition(status.conditions, PLACED)
    columns: Raw = {
        "ready": ready.status if ready else "Unknown",
        "reason": ready.reason if ready else "Pending",
    }
    if status.placement and placed and placed.status == "True":
        columns["node"] = status.placement.node
        columns["gpu"] = " ".join(f"gpu-{gpu.ordinal}" for gpu in status.placement.gpus)
        models = dict.fromkeys(gpu.model for gpu in status.placement.gpus if gpu.model)
        columns["gpu"] = " ".join([str(columns["gpu"]), *models])
    return columns


def _condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def _placement(placement: SessionPlacement) -> Raw:
    return {"node": placement.node, "gpus": _places(placement.gpus)}


def _failure(failure: Failure) -> Raw:
    return _filled(
        {
            "reason": failure.reason,
            "message": _clipped(failure.message),
            "retry": failure.retry,
            "at": failure.at,
            "generation": failure.generation,
            "modelGeneration": failure.model_generation,
        }
    )


def _nomination(nomination: Nomination) -> Raw:
    return _filled(
        {
            "node": nomination.node,
            "gpus": _places(nomination.gpus),
            "victims": list(nomination.victims),
            "expires": nomination.expires,
        }
    )


def _places(places: Iterable[GpuPlace]) -> list[Raw]:
    return [
        {
            "ordinal": place.ordinal,
            "uuid": place.uuid,
            "model": place.model,
            "slices": place.slices,
            "share": place.share,
        }
        for place in places
    ]


def _status_snapshot(ref: SnapshotRef) -> Raw:
    return _filled({"name": ref.name, **_snapshot(ref)})


def _snapshot(ref: SnapshotRef) -> Raw:
    return _filled(
        {
            "uri": ref.uri,
            "manifest": ref.manifest,
            "tokens": ref.tokens,
            "bytes": ref.bytes,
            "conversations": ref.conversations,
            "digest": ref.digest,
            "weightsDigest": ref.weights_digest,
            "kernelClass": ref.kernel_class,
            "epoch": ref.epoch,
            "saved": ref.saved,
        }
    )


def _quota(quota: Quota) -> Raw:
    return _filled({"share": quota.share, "slices": quota.slices, "sessions": quota.sessions})


def _secret_key(ref: SecretKey) -> Raw:
    return {"name": ref.name, "key": ref.key}


def _condition_status(conditions: tuple[Condition, ...]) -> Raw:
    return {"status": {"conditions": conditions_to_raw(conditions)}} if conditions else {}


def _clipped(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."


def _filled(fields: Mapping[str, object]) -> Raw:
    """Without what is absent or empty; zero and false are values and stay."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value not in ("", [], {})
    }
