"""What a session asks for: slices, share and the like, from its spec, its model and its tier.

Pure. Each figure that a spec may leave out is derived here, in one function.
"""

from collections.abc import Iterable, Mapping
from typing import Final, cast

from sojourn_api.gpus import WORKSPACE_BYTES
from sojourn_api.objects import (
    GpuNode,
    LatencyMetric,
    Model,
    Session,
    SessionPlacement,
    Spreading,
    Tenant,
    Tier,
)
from sojourn_api.quantity import quantity

from sojourn_operator import plan

MIB: Final = 1024 * 1024
DEFAULT_SLICE_BYTES: Final = 1024 * MIB


ONE_PROCESS: Final = frozenset({"eager", "cuda-eager"})
"""Devices on which a runtime computes in one process, and so on one GPU."""


def most_shards(device: str) -> int | None:
    """GPUs that a session may be spread over on this device at most; None: as many as it likes."""
    return 1 if device in ONE_PROCESS else None


def request(
    session: Session,
    model: Model,
    *,
    tier: Tier | None,
    share: int,
    slice_bytes: int,
    most_shards: int | None = None,
) -> plan.Request:
    """What the session asks for in all; each shard needs a key head of the model."""
    spec = session.spec
    tokens = context_length(session, model)
    need = model.weight_bytes + model.kv_bytes_per_token * tokens + WORKSPACE_BYTES
    minimum = -(-model.minimum_gpu_bytes // slice_bytes)
    slices = spec.resources.slices or max(-(-need // slice_bytes), minimum)
    cpu, memory = pod_resources(spec.template)
    return plan.Request(
        slices=slices,
        share=share,
        decode_fraction=model.decode_fraction,
        max_shards=min(spec.resources.max_shards, model.kv_heads, most_shards or model.kv_heads),
        minimum_slices=minimum,
        gpu_models=spec.placement.gpu_models,
        node_selector=tuple(sorted(spec.placement.node_selector.items())),
        tolerations=_tolerations(spec.template),
        cpu_milli=cpu,
        memory_bytes=memory,
        spread=spec.placement.spreading is Spreading.SPREAD,
        bandwidth=bandwidth(model, tier),
    )


def context_length(session: Session, model: Model) -> int:
    """Tokens that a start holds: the wish, or all that the model has.

    A wish beyond the model is left aside by a session that has served: it goes on with what it had.
    """
    wish, served = session.spec.context_length, session.status.context_length
    if wish is not None and wish > model.context_length and served:
        return served
    return wish or model.context_length


def bandwidth(model: Model, tier: Tier | None) -> int:
    """GB/s that reading all weights once per token takes within the tier's target, 0 without one.

    A target for the first token says nothing here: that depends on the prompt.
    """
    if tier is None or tier.target_metric is not LatencyMetric.INTER_TOKEN_LATENCY:
        return 0
    if not tier.target_p95_ms:
        return 0
    return -(-model.weight_bytes // (tier.target_p95_ms * 10**6))


def share_of(session: Session, tier: Tier | None, tenant: Tenant | None) -> int:
    """The share asked for: the session's wish, else its tenant's guarantee, else its tier's."""
    if session.spec.resources.share is not None:
        return session.spec.resources.share
    if tenant is not None and session.spec.tier in tenant.guarantees:
        return tenant.guarantees[session.spec.tier]
    return tier.guaranteed_share if tier is not None else 0


def slice_bytes(gpu_nodes: Iterable[GpuNode]) -> int:
    """The size of a slice: the smallest in use, so that a derived number is never short."""
    sizes = [gpu.slice_bytes for node in gpu_nodes for gpu in node.gpus]
    return min(sizes, default=DEFAULT_SLICE_BYTES)


def held(held: SessionPlacement, model: Model | None, *, beside: tuple[int, int]) -> plan.Request:
    """A session asks for what it holds, whatever its spec says by now.

    `beside` is the CPU (thousandths) and memory (bytes) that its pod requests.
    """
    shards = max(len(held.gpus), 1)
    return plan.Request(
        slices=sum(gpu.slices for gpu in held.gpus),
        share=sum(gpu.share for gpu in held.gpus),
        decode_fraction=model.decode_fraction if model else 500,
        shards=shards,
        max_shards=shards,
        cpu_milli=beside[0],
        memory_bytes=beside[1],
    )


def _tolerations(template: Mapping[str, object]) -> tuple[plan.Toleration, ...]:
    entries = template.get("tolerations")
    if not isinstance(entries, list):
        return ()
    return tuple(
        plan.Toleration(
            key=str(entry.get("key") or ""),
            operator=str(entry.get("operator") or "Equal"),
            value=str(entry.get("value") or ""),
            effect=str(entry.get("effect") or ""),
        )
        for entry in entries
    )


def pod_resources(template: Mapping[str, object]) -> tuple[int, int]:
    """CPU in thousandths and memory in bytes that the pod will request."""
    resources = template.get("resources")
    if not isinstance(resources, Mapping):
        return 0, 0
    limits = cast("Mapping[str, object]", resources.get("limits") or {})
    requests = {**limits, **cast("Mapping[str, object]", resources.get("requests") or {})}
    cpu = quantity(str(requests.get("cpu", "0")))
    return int(cpu * 1000), int(quantity(str(requests.get("memory", "0"))))
