"""The GPUNode, events and tiers, against a small API server over real HTTP."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicerig import Rig, until
from fakenvml import machine as fake
from nodeapi import NODE, Server, session_pod
from prometheus_client import generate_latest
from sojourn_api import arbiter, names
from sojourn_api.access import Access
from sojourn_api.arbiter_page import Page
from sojourn_api.parse import parse_gpu_node
from sojourn_deviceplugin import heartbeat
from sojourn_deviceplugin.plugin import Plugin

GPU0 = names.gpu_resource(0)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.crash()


def start(rig: Rig, server: Server) -> Plugin:
    rig.access = Access(url=f"http://127.0.0.1:{server.server_port}")
    return rig.ready()


def test_the_node_is_written_as_the_contract_reads_it(rig: Rig, server: Server) -> None:
    start(rig, server)
    until(lambda: server.status().get("slicesFree") == 79)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": "uid-node"}
    assert server.applied[NODE][0]["metadata"] == {"name": "node", "ownerReferences": [owner]}
    node = parse_gpu_node(server.node())
    (gpu,) = node.gpus
    assert (gpu.ordinal, gpu.model, gpu.slices, gpu.free_slices) == (0, "A100-80GB", 79, 79)
    assert (gpu.healthy, gpu.share) == (True, 1000)
    assert node.driver_version == "580.95.05"
    ready, kept = node.conditions
    assert (ready.type, ready.status, ready.reason) == (names.READY, "True", "Healthy")
    assert (kept.type, kept.status) == (names.GRANTS_KEPT, "Unknown")  # processes are hidden


def test_free_slices_follow_allocations(rig: Rig, server: Server) -> None:
    plugin = start(rig, server)
    first = rig.kubelet.admit("s-1", {GPU0: 30})
    until(lambda: server.status().get("slicesFree") == 49)
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    rig.kubelet.finish(first)
    until(lambda: server.status().get("slicesFree") == 79)


def test_an_unchanged_node_is_not_written_again(rig: Rig, server: Server) -> None:
    plugin = start(rig, server)
    until(lambda: server.status().get("healthyGpus") == 1)
    writes = len(server.applied[f"{NODE}/status"])
    rig.machine.set(0, used_mib=100, utilization=[3, 3])  # 100 MiB are foreign: one step
    until(lambda: len(server.applied[f"{NODE}/status"]) == writes + 1)
    rig.machine.set(0, used_mib=150, utilization=[9, 9])
    assert plugin.publisher is not None
    until(lambda: plugin.node.snapshot()[0].gpus[0].busy_percent == 9)
    rig.machine.set(0, used_mib=100 + 256)
    until(lambda: len(server.applied[f"{NODE}/status"]) == writes + 2)


def test_it_works_while_the_api_server_is_away_and_catches_up(rig: Rig, server: Server) -> None:
    start(rig, server)
    until(lambda: server.status().get("slicesFree") == 79)
    port = server.server_port
    server.crash()
    rig.kubelet.admit("s-1", {GPU0: 9})
    rig.machine.xid(0, 62)
    until(lambda: rig.sick(0))
    again = Server(port)
    until(lambda: again.status().get("healthyGpus") == 0)
    until(lambda: any(event["reason"] == "Xid62" for event in again.events))
    again.crash()


def test_silence_of_api_server_and_kubelet_holds_up_neither_allocations_nor_health(
    rig: Rig, server: Server
) -> None:
    start(rig, server)
    until(lambda: server.status().get("slicesFree") == 79)
    server.answering.clear()
    rig.kubelet.answering.clear()
    asked = rig.kubelet.listings
    until(lambda: server.unanswered and rig.kubelet.listings > asked)
    for n in range(20):
        rig.kubelet.admit(f"s-{n}", {GPU0: 1})
    rig.machine.xid(0, 62)
    until(lambda: rig.sick(0))
    assert server.status()["healthyGpus"] == 1, "nobody has been told yet"
    server.answering.set()
    rig.kubelet.answering.set()
    until(lambda: server.status()["healthyGpus"] == 0)


LEASE = "/apis/coordination.k8s.io/v1/namespaces/team/leases/sojourn-gpunode-node"


def test_a_sign_of_life_is_a_lease_that_goes_with_the_node(rig: Rig, server: Server) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    rig.access = Access(url=url, namespace="team")
    rig.ready()
    until(lambda: server.applied.get(LEASE))
    lease = server.applied[LEASE][0]
    assert lease["spec"]["holderIdentity"] == "node"
    assert lease["spec"]["leaseDurationSeconds"] > 2 * heartbeat.RENEW_SECONDS
    assert lease["metadata"]["labels"] == {names.LABEL_HEARTBEAT: names.MANAGER_DEVICEPLUGIN}
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "uid-node"


def test_without_the_right_to_a_lease_all_else_goes_on(rig: Rig, server: Server) -> None:
    server.forbidden = {"leases"}
    rig.access = Access(url=f"http://127.0.0.1:{server.server_port}", namespace="team")
    rig.ready()
    rig.machine.xid(0, 62)
    until(lambda: [event["reason"] for event in server.events] == ["Xid62"])


def test_of_a_node_that_is_deleted_nothing_is_written(rig: Rig, server: Server) -> None:
    server.node_uid = ""
    plugin = start(rig, server)
    until(lambda: "/api/v1/nodes/node" in server.queries)
    rig.kubelet.admit("s-1", {GPU0: 30})
    until(lambda: server.queries.count("/api/v1/nodes/node") > 2)
    assert NODE not in server.applied
    server.node_uid = "uid-new"
    until(lambda: server.status().get("slicesFree") == 49)
    assert server.applied[NODE][-1]["metadata"]["ownerReferences"][0]["uid"] == "uid-new"
    assert plugin.registrar.complete


def test_a_failing_gpu_is_an_event_on_the_node(rig: Rig, server: Server) -> None:
    start(rig, server)
    rig.machine.xid(0, 79)
    until(lambda: server.events and server.events[-1]["reason"] == "Xid79")
    event = server.events[-1]
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node"}
    assert event["type"] == "Warning"
    assert "fell off the bus" in event["message"]
    until(lambda: "Xid79" in server.status()["gpus"][0]["reason"])


def test_a_broken_nvml_is_one_event_for_all_gpus_and_one_when_it_is_back(
    rig: Rig, server: Server
) -> None:
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1)]
    start(rig, server)
    rig.machine.error = "UNKNOWN"
    rig.machine.write()
    until(lambda: server.status().get("healthyGpus") == 0)
    until(lambda: any(event["reason"] == "NvmlUnavailable" for event in server.events))
    rig.machine.error = ""
    rig.machine.write()
    until(lambda: server.status().get("healthyGpus") == 2)
    until(lambda: any(event["reason"] == "NvmlAvailable" for event in server.events))
    assert [(event["reason"], event["type"]) for event in server.events] == [
        ("NvmlUnavailable", "Warning"),
        ("NvmlAvailable", "Normal"),
    ]


def test_a_node_that_never_had_nvml_says_so(rig: Rig, server: Server) -> None:
    rig.access = Access(url=f"http://127.0.0.1:{server.server_port}")
    rig.machine.error = "DRIVER_NOT_LOADED"
    rig.start()
    until(lambda: server.events)
    assert server.events[0]["reason"] == "NvmlUnavailable"
    assert "is the driver loaded" in server.events[0]["message"]
    ready = parse_gpu_node(server.node()).conditions[0]
    assert (ready.status, ready.reason) == ("False", "NvmlUnavailable")


def test_a_restart_of_the_plugin_is_no_event(rig: Rig, server: Server) -> None:
    start(rig, server)
    rig.stop()
    start(rig, server)
    rig.machine.xid(0, 62)
    until(lambda: server.events)
    assert [event["reason"] for event in server.events] == ["Xid62"]


def test_without_the_right_to_send_events_all_else_goes_on(rig: Rig, server: Server) -> None:
    server.forbidden = {"events"}
    start(rig, server)
    rig.machine.xid(0, 62)
    until(lambda: server.status().get("healthyGpus") == 0)
    rig.machine.restart_driver()
    until(lambda: server.status().get("healthyGpus") == 1)


def test_a_grant_gets_its_pods_tier(rig: Rig, server: Server) -> None:
    start(rig, server)
    server.pods = [session_pod("s-1", priority=2500, slices=30)]
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    grants, slot = Path(given.mounts[0].host_path), given.envs[names.env_gpu_slot(0)]
    assert arbiter.read_tier(grants, slot).priority == arbiter.LOWEST
    until(lambda: arbiter.read_tier(grants, slot).priority == 2500)
    assert arbiter.read_tier(grants, slot).share == 700
    assert server.queries[0] == "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode"


def test_all_metrics_stand_in_the_docs_and_all_of_the_docs_exist(rig: Rig, server: Server) -> None:
    plugin = start(rig, server)
    session = session_pod("s-1", priority=2500, slices=30)
    server.pods = [session]
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    page = Page(Path(given.mounts[1].host_path))
    page.allocator(reserved=40, used=30, inactive_split=5, largest_free=4)
    until(lambda: any(grant.tier.priority == 2500 for grant in plugin.node.snapshot()[2]))
    text = generate_latest(plugin.metrics.registry).decode()
    families = re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)
    actual = {name for name in families if not name.endswith("_created")}
    page_text = (Path(__file__).parents[3] / "docs" / "deviceplugin.md").read_text()
    table = page_text.partition("## Metrics")[2].partition("## Rights")[0]
    assert set(re.findall(r"`(sojourn_\w+)`", table)) == actual
    key = {"gpu": "0", "namespace": "default", "pod": "s-1"}
    value = plugin.metrics.registry.get_sample_value
    assert value("sojourn_grant_allocator_largest_free_bytes", key) == 4
    assert value("sojourn_grant_enforcement", key | {"enforcement": "runtime"}) == 1
    page.close()
    assert value("sojourn_grant_enforcement", key | {"enforcement": "none"}) == 1


def test_a_tier_outlives_the_plugin(rig: Rig, server: Server) -> None:
    start(rig, server)
    server.pods = [session_pod("s-1", priority=2500, slices=30)]
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    grants, slot = Path(given.mounts[0].host_path), given.envs[names.env_gpu_slot(0)]
    until(lambda: arbiter.read_tier(grants, slot).priority == 2500)
    rig.stop()
    rig.access = None  # nobody can tell the tier again
    plugin = rig.ready()
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    assert arbiter.read_tier(grants, slot).priority == 2500


@pytest.mark.parametrize("fault", ["no session's", "other slices", "no annotation"])
def test_a_pod_that_the_operator_did_not_vouch_for_stays_lowest(
    rig: Rig, server: Server, fault: str
) -> None:
    plugin = start(rig, server)
    liar = session_pod("s-1", priority=2500, slices=30)
    if fault == "no session's":
        liar["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet"
    elif fault == "no annotation":
        del liar["metadata"]["annotations"][names.ANNOTATION_PRIORITY]
    server.pods = [liar, session_pod("s-2", priority=1000, slices=5)]
    given = rig.kubelet.admit("s-1", {GPU0: 29 if fault == "other slices" else 30})
    rig.kubelet.admit("s-2", {GPU0: 5})
    until(lambda: any(grant.tier.priority == 1000 for grant in plugin.node.snapshot()[2]))
    answer = given.responses[GPU0]
    slot = answer.envs[names.env_gpu_slot(0)]
    grants = Path(answer.mounts[0].host_path)
    assert arbiter.read_tier(grants, slot).priority == arbiter.LOWEST
