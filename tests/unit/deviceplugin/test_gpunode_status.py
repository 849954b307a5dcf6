"""The GPUNode's status as a value."""

from dataclasses import replace

from sojourn_deviceplugin import gpunode, health, registry
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer

GIB = 1024**3
SICK = health.Verdict(healthy=False, reason="Xid79", message="reboot the node")


def node(*models: str) -> tuple[NodeFacts, list[Offer]]:
    gpus = tuple(
        GpuFacts(uuid=f"GPU-{n}", model=model, total_bytes=80 * GIB)
        for n, model in enumerate(models)
    )
    known = registry.enroll({}, gpus, Config()).values()
    facts = NodeFacts(gpus=gpus, driver="1", session=1)
    return facts, [Offer(gpu, health.HEALTHY) for gpu in known]


def grant(ordinal: int, slices: int) -> Grant:
    devices = frozenset(f"{ordinal}-{n}" for n in range(slices))
    return Grant(ordinal=ordinal, devices=devices, slot="1", made_ns=0)


def status(facts: NodeFacts, offers: list[Offer], *grants: Grant) -> dict[str, object]:
    return gpunode.status(facts, offers, grants, condition=gpunode.ready(facts, offers))


def test_sums_are_over_all_gpus() -> None:
    facts, offers = node("NVIDIA H200", "NVIDIA H200")
    found = status(facts, offers, grant(0, 30), grant(1, 60))
    assert (found["slicesTotal"], found["slicesFree"]) == (158, 68)
    assert (found["gpuCount"], found["healthyGpus"], found["gpuModel"]) == (2, 2, "H200")
    assert found["scatterPercent"] == 28  # 49 of 68 are on one GPU
    assert found["fragmentPercent"] == 64  # a size of 30 strands 19 of 68, one of 60 all 68


def test_different_models_are_mixed() -> None:
    assert status(*node("NVIDIA H200", "NVIDIA L4"))["gpuModel"] == "mixed"


def test_without_sessions_the_fragment_is_unknown_and_left_out() -> None:
    assert "fragmentPercent" not in status(*node("NVIDIA H200"))


def test_a_sick_gpu_has_no_slices_in_service() -> None:
    facts, offers = node("NVIDIA H200", "NVIDIA H200")
    offers[1] = replace(offers[1], verdict=SICK)
    found = status(facts, offers, grant(1, 30))
    assert (found["slicesTotal"], found["slicesFree"], found["healthyGpus"]) == (79, 79, 1)
    condition = gpunode.ready(facts, offers)
    assert (condition.status, condition.reason) == ("True", "SomeUnhealthy")
    assert "gpu-1: Xid79: reboot the node" in condition.message


def test_a_node_is_not_ready_with_nothing_to_offer_and_says_why() -> None:
    facts, offers = node("NVIDIA H200")
    sick = [replace(offers[0], verdict=SICK)]
    reasons = [
        gpunode.ready(facts, sick).reason,
        gpunode.ready(NodeFacts(session=1), []).reason,
        gpunode.ready(NodeFacts(error="no driver"), []).reason,
    ]
    assert reasons == ["AllUnhealthy", "NoGpus", "NvmlUnavailable"]
    assert gpunode.ready(facts, sick).status == "False"


def test_foreign_memory_is_told_in_steps() -> None:
    facts, offers = node("NVIDIA H200")
    entry = gpunode.gpu(replace(offers[0], foreign_bytes=1), [])
    assert entry.foreign_bytes == gpunode.FOREIGN_STEP
    assert facts.driver == "1"


def test_an_unknown_model_has_no_share() -> None:
    _, offers = node("NVIDIA Nonesuch")
    entry = gpunode.gpu(offers[0], [])
    assert (entry.model, entry.share) == ("Nonesuch", 0)
