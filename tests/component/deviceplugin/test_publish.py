"""The GPUNode, events and tiers, against a small API server over real HTTP."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from devicerig import Rig, until
from prometheus_client import generate_latest
from sojourn_api import arbiter, names
from sojourn_api.parse import parse_gpu_node
from sojourn_deviceplugin.kube import Access
from sojourn_deviceplugin.plugin import Plugin

GPU0 = names.gpu_resource(0)
NODE = "/apis/sojourn.dev/v1alpha1/gpunodes/node"


class Server(ThreadingHTTPServer):
    """Keeps what is applied; `forbidden` paths answer 403."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.applied: dict[str, list[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self.queries: list[str] = []
        self.forbidden: set[str] = set()
        self.connections: list[socket.socket] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted = super().get_request()
        self.connections.append(accepted[0])
        return accepted

    def crash(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def status(self) -> dict[str, Any]:
        writes = self.applied.get(f"{NODE}/status")
        found: dict[str, Any] = writes[-1]["status"] if writes else {}
        return found


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.queries.append(self.path)
        self.answer(200, {"kind": "PartialObjectMetadataList", "items": self.server.pods})

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/apply-patch+yaml"
        path, _, query = self.path.partition("?")
        assert "fieldManager=sojourn-deviceplugin" in query
        body = self.body()
        self.server.applied.setdefault(path, []).append(body)
        self.answer(200, body)

    def do_POST(self) -> None:
        body = self.body()
        if "events" in self.server.forbidden:
            self.answer(403, {"message": "events is forbidden"})
            return
        self.server.events.append(body)
        self.answer(201, body)

    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return decoded

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.crash()


def start(rig: Rig, server: Server) -> Plugin:
    rig.access = Access(url=f"http://127.0.0.1:{server.server_port}")
    return rig.ready()


def pod(name: str, *, priority: int, slices: int, owner: str = "LLMSession") -> dict[str, Any]:
    gpus = [{"ordinal": 0, "uuid": "", "slices": slices, "share": 700}]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "ownerReferences": [
                {"apiVersion": "sojourn.dev/v1alpha1", "kind": owner, "controller": True}
            ],
            "annotations": {
                names.ANNOTATION_TIER: "gold",
                names.ANNOTATION_PRIORITY: str(priority),
                names.ANNOTATION_GPUS: json.dumps(gpus),
            },
        }
    }


def test_the_node_is_written_as_the_contract_reads_it(rig: Rig, server: Server) -> None:
    start(rig, server)
    until(lambda: server.status().get("slicesFree") == 79)
    assert server.applied[NODE][0]["metadata"] == {"name": "node"}
    node = parse_gpu_node({"metadata": {"name": "node", "uid": "u"}, "status": server.status()})
    (gpu,) = node.gpus
    assert (gpu.ordinal, gpu.model, gpu.slices, gpu.free_slices) == (0, "A100-80GB", 79, 79)
    assert (gpu.healthy, gpu.share) == (True, 1000)
    assert node.driver_version == "580.95.05"
    (ready,) = node.conditions
    assert (ready.status, ready.reason) == ("True", "Healthy")


def test_free_slices_follow_allocations(rig: Rig, server: Server) -> None:
    start(rig, server)
    first = rig.kubelet.admit("s-1", {GPU0: 30})
    until(lambda: server.status().get("slicesFree") == 49)
    rig.kubelet.finish(first)
    until(lambda: server.status().get("slicesFree") == 79)


def test_an_unchanged_node_is_not_written_again(rig: Rig, server: Server) -> None:
    plugin = start(rig, server)
    until(lambda: server.status().get("healthyGpus") == 1)
    writes = len(server.applied[f"{NODE}/status"])
    rig.machine.set(0, used_mib=100, utilization=[50, 50])  # 100 MiB are foreign: one step
    until(lambda: len(server.applied[f"{NODE}/status"]) == writes + 1)
    rig.machine.set(0, used_mib=150, utilization=[90, 90])
    assert plugin.publisher is not None
    until(lambda: plugin.node.snapshot()[0].gpus[0].busy_percent == 90)
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


def test_a_failing_gpu_is_an_event_on_the_node(rig: Rig, server: Server) -> None:
    start(rig, server)
    rig.machine.xid(0, 79)
    until(lambda: server.events and server.events[-1]["reason"] == "Xid79")
    event = server.events[-1]
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node"}
    assert event["type"] == "Warning"
    assert "fell off the bus" in event["message"]
    until(lambda: "Xid79" in server.status()["gpus"][0]["reason"])


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
    server.pods = [pod("s-1", priority=2500, slices=30)]
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    grants, slot = Path(given.mounts[0].host_path), given.envs[names.env_gpu_slot(0)]
    assert arbiter.read_tier(grants, slot).priority == arbiter.LOWEST
    took = until(lambda: arbiter.read_tier(grants, slot).priority == 2500)
    assert took < 3
    assert arbiter.read_tier(grants, slot).share == 700
    assert server.queries[0] == "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode"


def test_all_metrics_stand_in_the_docs_and_all_of_the_docs_exist(rig: Rig, server: Server) -> None:
    plugin = start(rig, server)
    session = pod("s-1", priority=2500, slices=30)
    server.pods = [session]
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    page = arbiter.Page(Path(given.mounts[1].host_path))
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
    server.pods = [pod("s-1", priority=2500, slices=30)]
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    grants, slot = Path(given.mounts[0].host_path), given.envs[names.env_gpu_slot(0)]
    until(lambda: arbiter.read_tier(grants, slot).priority == 2500)
    rig.stop()
    rig.access = None  # nobody can tell the tier again
    plugin = rig.ready()
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    assert arbiter.read_tier(grants, slot).priority == 2500


def test_with_the_hosts_proc_memory_is_told_apart_by_pod(rig: Rig, server: Server) -> None:
    uid = "0f6a3c1e-8f5b-4b7e-9a53-0c6d2f1e7a90"
    proc = rig.folder / "proc"
    for pid, cgroup in ((71, f"0::/kubepods/pod{uid}/1"), (72, "0::/system.slice/x.service")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(cgroup)
    rig.settings["host_proc"] = proc
    rig.settings["process_names"] = True
    session = pod("s-1", priority=0, slices=30)
    session["metadata"]["uid"] = uid
    server.pods = [session]
    plugin = start(rig, server)
    rig.kubelet.admit("s-1", {GPU0: 30})
    until(lambda: plugin.publisher is not None and plugin.publisher.pods)
    stranger = {"pid": 72, "mib": 3 * 1024, "name": "Xorg"}
    rig.machine.set(0, processes=[{"pid": 71, "mib": 5 * 1024}, stranger])
    # All of it would fit into the grant, and yet 3 GiB are known to be foreign.
    until(lambda: rig.kubelet.allocatable(GPU0) == 76)
    until(lambda: any("Xorg" in event["message"] for event in server.events))
    rig.machine.set(0, processes=[{"pid": 71, "mib": 31 * 1024}])
    until(lambda: any(event["reason"] == "MemoryOverGrant" for event in server.events))
    assert "default/s-1 uses" in server.events[-1]["message"]


def test_computing_under_a_higher_flag_is_reported(rig: Rig, server: Server) -> None:
    gold, silver = pod("g-1", priority=2500, slices=30), pod("s-1", priority=1000, slices=20)
    server.pods = [gold, silver]
    plugin = start(rig, server)
    pages = []
    for name, size in (("g-1", 30), ("s-1", 20)):
        given = rig.kubelet.admit(name, {GPU0: size}).responses[GPU0]
        pages.append(arbiter.Page(Path(given.mounts[1].host_path)))
    until(lambda: {g.tier.priority for g in plugin.node.snapshot()[2]} == {2500, 1000})
    up, cheat = pages
    up.raise_flag()

    def offends() -> bool:
        up.beat()
        cheat.step()
        return any(event["reason"] == "YieldIgnored" for event in server.events)

    until(offends)
    assert "default/s-1 computed" in server.events[-1]["message"]
    for page in pages:
        page.close()


@pytest.mark.parametrize("fault", ["no session's", "other slices", "no annotation"])
def test_a_pod_that_the_operator_did_not_vouch_for_stays_lowest(
    rig: Rig, server: Server, fault: str
) -> None:
    plugin = start(rig, server)
    liar = pod("s-1", priority=2500, slices=30)
    if fault == "no session's":
        liar["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet"
    elif fault == "no annotation":
        del liar["metadata"]["annotations"][names.ANNOTATION_PRIORITY]
    server.pods = [liar, pod("s-2", priority=1000, slices=5)]
    given = rig.kubelet.admit("s-1", {GPU0: 29 if fault == "other slices" else 30})
    rig.kubelet.admit("s-2", {GPU0: 5})
    until(lambda: any(grant.tier.priority == 1000 for grant in plugin.node.snapshot()[2]))
    answer = given.responses[GPU0]
    slot = answer.envs[names.env_gpu_slot(0)]
    grants = Path(answer.mounts[0].host_path)
    assert arbiter.read_tier(grants, slot).priority == arbiter.LOWEST
