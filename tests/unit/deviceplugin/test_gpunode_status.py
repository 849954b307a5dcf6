"""The GPUNode's status as a value."""

from dataclasses import replace
from typing import Any

from sojourn_api.objects import AllocatorUse, GpuLoad
from sojourn_deviceplugin import gpunode, health, registry
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import GpuFacts, MigProfile, NodeFacts
from sojourn_deviceplugin.figures import Figures
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
    assert "see nvidia-smi" in gpunode.ready(NodeFacts(session=1), []).message


def test_each_session_size_in_use_has_its_stranded_slices() -> None:
    found = status(*node("NVIDIA H200", "NVIDIA H200"), grant(0, 30), grant(1, 60))
    # 49 and 19 slices are free: a session of 60 finds no place at all, one of 30 not in the 19.
    assert found["stranded"] == [{"size": 60, "slices": 68}, {"size": 30, "slices": 19}]
    assert found["strandedSlices"] == 68


def test_without_sessions_what_is_stranded_is_unknown_and_left_out() -> None:
    found = status(*node("NVIDIA H200"))
    assert not {"stranded", "strandedSlices"} & set(found)


def test_more_sizes_than_the_schema_takes_leave_out_the_smallest() -> None:
    facts, offers = node(*["NVIDIA H200"] * 2)
    many = [grant(n % 2, n) for n in range(1, 71)]
    found = gpunode.status(facts, offers, many, condition=gpunode.ready(facts, offers))
    sizes = [entry["size"] for entry in found["stranded"]]
    assert sizes == list(range(70, 6, -1))


def test_placements_are_told_of_gpus_in_mig_mode() -> None:
    rooms = (MigProfile("3g.40gb", 3, 0, 2), MigProfile("1g.10gb", 1, 5, 7))
    facts, offers = node("NVIDIA H200", "NVIDIA H200")
    facts = replace(facts, gpus=(replace(facts.gpus[0], profiles=rooms), facts.gpus[1]))
    found = status(facts, [replace(offers[0], mig=True), offers[1]])
    entries: Any = found["gpus"]
    assert entries[0]["profiles"] == [
        {"profile": "1g.10gb", "remaining": 5, "ideal": 7},
        {"profile": "3g.40gb", "remaining": 0, "ideal": 2},
    ]
    assert "profiles" not in entries[1]
    assert found["migGpus"] == 1


def test_figures_are_told_where_they_are_known() -> None:
    facts, offers = node("NVIDIA H200", "NVIDIA L4")
    figures = Figures(
        loads={0: GpuLoad(busy=90, sm=40), 1: GpuLoad(busy=20)},
        allocators={0: (AllocatorUse("a/x-1", reserved=4, used=3),)},
        foreign={1: 256},
    )
    condition = gpunode.ready(facts, offers)
    found = gpunode.status(facts, offers, [], condition=condition, figures=figures)
    first, second = found["gpus"]
    assert first["load"] == {"busyPercent": 90, "smPercent": 40}
    assert first["allocators"] == [{"pod": "a/x-1", "reservedBytes": 4, "usedBytes": 3}]
    assert second["load"] == {"busyPercent": 20}
    assert "allocators" not in second
    assert (first["foreignBytes"], second["foreignBytes"]) == (0, 256)
    assert found["busyPercent"] == 55


def test_without_figures_none_are_told() -> None:
    found = status(*node("NVIDIA H200"))
    entries: Any = found["gpus"]
    assert not {"load", "allocators"} & set(entries[0])
    assert "busyPercent" not in found


def test_an_unknown_model_has_no_share() -> None:
    _, offers = node("NVIDIA Nonesuch")
    entry = gpunode.gpu(offers[0], [])
    assert (entry.model, entry.share) == ("Nonesuch", 0)
