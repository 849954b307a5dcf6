"""From what the API server sends to the frozen values of `objects`.

Strict on a spec: what the CRD would refuse is refused here too, since an object may be older than
its CRD. A status may be missing in whole or in part: then it is what a new object has.
Unknown fields are ignored, so that an older component reads newer objects. The way back: `render`.
"""

from collections.abc import Mapping

from sojourn_api.objects import (
    AllocatorUse,
    Condition,
    Failure,
    Gpu,
    GpuLoad,
    GpuNode,
    GpuPlace,
    IdleAction,
    LatencyMetric,
    MigRoom,
    Model,
    Nomination,
    ObjectMeta,
    Offender,
    Placement,
    Quota,
    Resources,
    SecretKey,
    Session,
    SessionPlacement,
    SessionSpec,
    SessionStatus,
    Snapshot,
    SnapshotPolicy,
    SnapshotRef,
    Spreading,
    Stranded,
    Tenant,
    Tier,
)
from sojourn_api.reader import Invalid, Reader

__all__ = [
    "Invalid",
    "parse_gpu_node",
    "parse_meta",
    "parse_model",
    "parse_session",
    "parse_snapshot",
    "parse_tenant",
    "parse_tier",
]

Raw = Mapping[str, object]

MAX_SHARE = 1_000_000
"""A thousand A100s: more than one GPU or one tenant of one cluster is expected to have."""
MAX_SLICES = 65_536
MAX_CONTEXT = 16_777_216
MAX_SHARDS = 16
MAX_QUOTA = 1_000_000_000
MAX_SECONDS = 2_592_000
"""Thirty days."""


def parse_session(raw: Raw) -> Session:
    """An LLMSession."""
    root = Reader(raw)
    return Session(parse_meta(raw), _session_spec(root.part("spec")), _session_status(root))


def parse_model(raw: Raw) -> Model:
    """An LLMModel."""
    root = Reader(raw)
    spec = root.part("spec")
    heads = spec.number("heads", low=1, high=1024)
    kv_heads = spec.number("kvHeads", low=1, high=1024)
    if heads % kv_heads:
        hint = "copy both from the model's config (num_attention_heads, num_key_value_heads)"
        raise Invalid(spec.at("kvHeads"), f"must divide spec.heads ({heads}); {hint}")
    return Model(
        parse_meta(raw),
        uri=spec.text("uri"),
        weight_bytes=spec.number("weightBytes", low=1),
        kv_bytes_per_token=spec.number("kvBytesPerToken", low=1, high=2**30),
        layers=spec.number("layers", low=1, high=1024),
        heads=heads,
        kv_heads=kv_heads,
        context_length=spec.number("contextLength", low=1, high=MAX_CONTEXT),
        digest=spec.text("digest", ""),
        quantization=spec.text("quantization", "bf16"),
        decode_fraction=spec.number("decodeFraction", 500, high=1000),
        minimum_gpu_bytes=spec.number("minimumGpuBytes", 0),
        conditions=_conditions(root.part("status")),
    )


def parse_tier(raw: Raw) -> Tier:
    """A QoSTier; without `target` it is best effort."""
    meta = parse_meta(raw)
    spec = Reader(raw).part("spec")
    target = spec.part("target")
    pausable_by = spec.texts("pausableBy")
    if meta.name in pausable_by:
        hint = "remove it; sessions of one tier never pause one another"
        raise Invalid(spec.at("pausableBy"), f"contains the tier itself ({meta.name}); {hint}")
    return Tier(
        meta,
        priority=spec.number("priority", high=1_000_000),
        guaranteed_share=spec.number("guaranteedShare", high=MAX_SHARE),
        target_p95_ms=target.number("p95Milliseconds", low=1, high=3_600_000)
        if spec.has("target")
        else 0,
        target_metric=target.choice("metric", LatencyMetric, LatencyMetric.TIME_TO_FIRST_TOKEN),
        pausable_by=pausable_by,
        min_run_seconds=spec.number("minRunSeconds", 30, high=MAX_SECONDS),
        cool_down_seconds=spec.number("coolDownSeconds", 30, high=MAX_SECONDS),
        time_slice_ms=spec.number("timeSliceMilliseconds", 50, low=1, high=10_000),
    )


def parse_tenant(raw: Raw) -> Tenant:
    """A Tenant."""
    root = Reader(raw)
    spec = root.part("spec")
    quota = spec.part("quota")
    tiers = spec.texts("tiers")
    guarantees: dict[str, int] = {}
    for entry in spec.parts("guarantees"):
        tier = entry.text("tier")
        if tier not in tiers:
            raise Invalid(entry.at("tier"), f"{tier} is not in spec.tiers; add it there or drop it")
        guarantees[tier] = entry.number("share", high=MAX_SHARE)
    return Tenant(
        parse_meta(raw),
        namespaces=spec.texts("namespaces"),
        tiers=tiers,
        guarantees=guarantees,
        weight=spec.number("weight", 1, low=1, high=1000),
        quota=Quota(
            share=quota.maybe_number("share", high=MAX_QUOTA),
            slices=quota.maybe_number("slices", high=MAX_QUOTA),
            sessions=quota.maybe_number("sessions", high=1_000_000),
        ),
        api_key=_secret_key(spec),
        conditions=_conditions(root.part("status")),
    )


def parse_gpu_node(raw: Raw) -> GpuNode:
    """A GPUNode; one that the device plugin has not filled in yet has no GPUs."""
    status = Reader(raw).part("status")
    return GpuNode(
        parse_meta(raw),
        gpus=tuple(_gpu(gpu) for gpu in status.parts("gpus")),
        driver_version=status.text("driverVersion", ""),
        stranded=tuple(
            Stranded(size=entry.number("size"), slices=entry.number("slices"))
            for entry in status.parts("stranded")
        ),
        offenders=tuple(_offender(entry) for entry in status.parts("offenders")),
        conditions=_conditions(status),
    )


def parse_snapshot(raw: Raw) -> Snapshot:
    """A SessionSnapshot; its reference names the object itself."""
    meta = parse_meta(raw)
    root = Reader(raw)
    spec = root.part("spec")
    spec.number("epoch", low=1)
    ref = snapshot_ref(spec, name=meta.name)
    return Snapshot(meta, spec.text("session"), ref, _conditions(root.part("status")))


def parse_meta(raw: Raw) -> ObjectMeta:
    """`metadata` of any object, a Kubernetes node or pod included."""
    meta = Reader(raw).part("metadata")
    return ObjectMeta(
        name=meta.text("name"),
        namespace=meta.text("namespace", ""),
        uid=meta.text("uid", ""),
        generation=meta.number("generation", 0),
        created=meta.text("creationTimestamp", ""),
        deleting=meta.has("deletionTimestamp"),
        resource_version=meta.text("resourceVersion", ""),
        finalizers=meta.texts("finalizers"),
        labels=meta.labels("labels"),
        annotations=meta.labels("annotations"),
    )


def _session_spec(spec: Reader) -> SessionSpec:
    resources = spec.part("resources")
    placement = spec.part("placement")
    idle = spec.part("idle")
    snapshot = spec.part("snapshot")
    idle_seconds = idle.number("afterSeconds", 0, high=MAX_SECONDS)
    idle_action = idle.choice("action", IdleAction, IdleAction.NONE)
    if idle_action is IdleAction.PAUSE and not idle_seconds:
        raise Invalid(idle.at("afterSeconds"), "must be 1 or more when spec.idle.action is Pause")
    return SessionSpec(
        model=spec.text("model"),
        tier=spec.text("tier"),
        context_length=spec.maybe_number("contextLength", low=1, high=MAX_CONTEXT),
        resources=Resources(
            slices=resources.maybe_number("slices", low=1, high=MAX_SLICES),
            share=resources.maybe_number("share", low=1, high=MAX_SHARE),
            max_shards=resources.number("maxShards", 1, low=1, high=MAX_SHARDS),
        ),
        placement=Placement(
            gpu_models=placement.texts("gpuModels"),
            node_selector=placement.labels("nodeSelector"),
            spreading=placement.choice("spreading", Spreading, Spreading.PACK),
        ),
        suspend=spec.flag("suspend", default=False),
        idle_after_seconds=idle_seconds,
        idle_action=idle_action,
        snapshot_policy=snapshot.choice("policy", SnapshotPolicy, SnapshotPolicy.DELETE),
        checkpoint_tokens=snapshot.number("checkpointTokens", 256, low=1, high=65_536),
        api_key=_secret_key(spec),
        template=spec.part("template").raw,
    )


def _secret_key(spec: Reader) -> SecretKey | None:
    if not spec.has("apiKeySecretRef"):
        return None
    ref = spec.part("apiKeySecretRef")
    return SecretKey(ref.text("name"), ref.text("key", "api-key"))


def _session_status(root: Reader) -> SessionStatus:
    status = root.part("status")
    return SessionStatus(
        epoch=status.number("epoch", 0),
        conditions=_conditions(status),
        placement=_placement(status),
        nomination=_nomination(status),
        snapshot=_status_snapshot(status),
        preempted_by=status.text("preemptedBy", ""),
        paused_at=status.text("pausedAt", ""),
        started_at=status.text("startedAt", ""),
        endpoint=status.text("endpoint", ""),
        exact=status.flag("exact", default=True),
        context_length=status.number("contextLength", 0),
        failures=status.number("failures", 0),
        failure=_failure(status),
    )


def _failure(status: Reader) -> Failure | None:
    if not status.has("failure"):
        return None
    part = status.part("failure")
    return Failure(
        reason=part.text("reason"),
        message=part.text("message", ""),
        retry=part.flag("retry", default=True),
        at=part.text("at", ""),
        generation=part.number("generation", 0),
        model_generation=part.number("modelGeneration", 0),
    )


def _placement(status: Reader) -> SessionPlacement | None:
    if not status.has("placement"):
        return None
    part = status.part("placement")
    return SessionPlacement(part.text("node"), _places(part))


def _nomination(status: Reader) -> Nomination | None:
    if not status.has("nomination"):
        return None
    part = status.part("nomination")
    return Nomination(
        part.text("node"),
        _places(part),
        victims=part.texts("victims"),
        expires=part.text("expires", ""),
    )


def _status_snapshot(status: Reader) -> SnapshotRef | None:
    if not status.has("snapshot"):
        return None
    part = status.part("snapshot")
    return snapshot_ref(part, name=part.text("name", ""))


def snapshot_ref(part: Reader, *, name: str) -> SnapshotRef:
    """A saved context, in a spec, a status or a runtime's report; `name` is its object's."""
    return SnapshotRef(
        name=name,
        uri=part.text("uri"),
        tokens=part.number("tokens", 0),
        bytes=part.number("bytes", 0),
        conversations=part.number("conversations", 0),
        digest=part.text("digest", ""),
        weights_digest=part.text("weightsDigest", ""),
        kernel_class=part.text("kernelClass", ""),
        epoch=part.number("epoch", 0),
        saved=part.text("saved", ""),
        manifest=part.text("manifest", ""),
    )


def _places(part: Reader) -> tuple[GpuPlace, ...]:
    return tuple(
        GpuPlace(
            ordinal=gpu.number("ordinal"),
            uuid=gpu.text("uuid", ""),
            model=gpu.text("model", ""),
            slices=gpu.number("slices", low=1),
            share=gpu.number("share", 0),
        )
        for gpu in part.parts("gpus")
    )


def _gpu(gpu: Reader) -> Gpu:
    return Gpu(
        ordinal=gpu.number("ordinal"),
        uuid=gpu.text("uuid"),
        model=gpu.text("model", ""),
        memory_bytes=gpu.number("memoryBytes", 0),
        slice_bytes=gpu.number("sliceBytes", low=1),
        slices=gpu.number("slices", 0),
        free_slices=gpu.number("freeSlices", 0),
        healthy=gpu.flag("healthy", default=False),
        reason=gpu.text("reason", ""),
        foreign_bytes=gpu.number("foreignBytes", 0),
        foreign_by=gpu.texts("foreignBy"),
        mig=gpu.flag("mig", default=False),
        links=gpu.numbers("links"),
        share=gpu.number("share", 0),
        load=_load(gpu.part("load")),
        profiles=tuple(
            MigRoom(
                profile=entry.text("profile"),
                remaining=entry.number("remaining"),
                ideal=entry.number("ideal"),
            )
            for entry in gpu.parts("profiles")
        ),
        allocators=tuple(_allocator(entry) for entry in gpu.parts("allocators")),
    )


def _offender(entry: Reader) -> Offender:
    return Offender(
        namespace=entry.text("namespace"),
        pod=entry.text("pod"),
        uid=entry.text("uid", ""),
        reason=entry.text("reason"),
        message=entry.text("message", ""),
        stop=entry.flag("stop", default=False),
    )


def _load(load: Reader) -> GpuLoad:
    return GpuLoad(
        busy=load.maybe_number("busyPercent", high=100),
        sm=load.maybe_number("smPercent", high=100),
        bandwidth=load.maybe_number("bandwidthPercent", high=100),
    )


def _allocator(entry: Reader) -> AllocatorUse:
    return AllocatorUse(
        pod=entry.text("pod"),
        reserved=entry.number("reservedBytes"),
        used=entry.number("usedBytes"),
        inactive_split=entry.maybe_number("inactiveSplitBytes"),
        largest_free=entry.maybe_number("largestFreeBytes"),
    )


def _conditions(status: Reader) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=entry.text("type"),
            status=entry.text("status", "Unknown"),
            reason=entry.text("reason", ""),
            message=entry.text("message", ""),
            observed_generation=entry.number("observedGeneration", 0),
            last_transition=entry.text("lastTransitionTime", ""),
        )
        for entry in status.parts("conditions")
    )
