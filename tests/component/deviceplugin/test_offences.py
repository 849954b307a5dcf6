"""Who takes more than was granted is seen, told once, and by policy named to the operator."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devicerig import Rig, until
from nodeapi import Server, session_pod
from sojourn_api import names
from sojourn_api.access import Access
from sojourn_api.arbiter_page import Page
from sojourn_api.objects import Offender
from sojourn_api.parse import parse_gpu_node
from sojourn_deviceplugin.config import Policy
from sojourn_deviceplugin.plugin import Plugin

GPU0 = names.gpu_resource(0)
UID = "0f6a3c1e-8f5b-4b7e-9a53-0c6d2f1e7a90"

GOLD = UID.replace("0f6a", "90d1")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.crash()


def start(rig: Rig, server: Server) -> Plugin:
    """A plugin on a node with Gold's pod `g-1` and Silver's `s-1`."""
    rig.access = Access(url=f"http://127.0.0.1:{server.server_port}")
    server.pods = [
        session_pod("g-1", priority=2500, slices=30, uid=GOLD),
        session_pod("s-1", priority=1000, slices=20, uid=UID),
    ]
    return rig.ready()


def admit(rig: Rig, plugin: Plugin) -> list[Path]:
    """Both pods; their own folders of the arbiter."""
    given = [
        rig.kubelet.admit(name, {GPU0: size}).responses[GPU0]
        for name, size in (("g-1", 30), ("s-1", 20))
    ]
    until(lambda: {g.tier.priority for g in plugin.node.snapshot()[2]} == {2500, 1000})
    return [Path(answer.mounts[1].host_path) for answer in given]


def hosted(rig: Rig, cgroups: dict[int, str]) -> None:
    """The host's processes, as the plugin may see them."""
    proc = rig.folder / "proc"
    for pid, cgroup in cgroups.items():
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(cgroup)
    rig.settings["host_proc"] = proc


def held(server: Server) -> tuple[Offender, ...]:
    return parse_gpu_node(server.node()).offenders


def told(server: Server, reason: str) -> list[str]:
    return [event["message"] for event in server.events if event["reason"] == reason]


def kept(server: Server) -> tuple[str, str]:
    found = parse_gpu_node(server.node()).conditions
    return next((one.status, one.message) for one in found if one.type == names.GRANTS_KEPT)


def under_a_flag(up: Page, then: Callable[[], object]) -> Callable[[], object]:
    def look() -> object:
        up.beat()
        return then()

    return look


def test_memory_is_told_apart_by_pod_and_process(rig: Rig, server: Server) -> None:
    hosted(rig, {71: f"0::/kubepods/pod{UID}/1", 72: "0::/system.slice/x.service"})
    rig.settings["process_names"] = True
    plugin = start(rig, server)
    admit(rig, plugin)
    until(lambda: kept(server)[0] == "True")
    stranger = {"pid": 72, "mib": 3 * 1024, "name": "Xorg"}
    rig.machine.set(0, processes=[{"pid": 71, "mib": 5 * 1024}, stranger])
    # All of it would fit into the grants, and yet 3 GiB are known to be foreign.
    until(lambda: rig.kubelet.allocatable(GPU0) == 76)
    until(lambda: any("Xorg" in message for message in told(server, "ForeignMemory")))
    until(lambda: parse_gpu_node(server.node()).gpus[0].foreign_by == ("Xorg",))
    rig.machine.set(0, processes=[{"pid": 71, "mib": 21 * 1024, "name": "python"}])
    until(lambda: held(server))
    (one,) = held(server)
    assert (one.pod, one.uid, one.reason, one.stop) == ("s-1", UID, "OverMemory", False)
    assert one.message == (
        "gpu-0: default/s-1 uses 21504 MiB, 1024 MiB more than granted (processes 71 python)"
    )
    assert kept(server) == ("False", one.message)
    until(lambda: told(server, "OverMemory"))
    key = {"gpu": "0", "namespace": "default", "pod": "s-1"}
    value = plugin.metrics.registry.get_sample_value
    assert value("sojourn_grant_memory_used_bytes", key) == 21 * 2**30
    assert value("sojourn_grants_over_memory") == 1
    rig.machine.set(0, processes=[{"pid": 71, "mib": 31 * 1024, "name": "python"}])
    until(lambda: "31744 MiB" in held(server)[0].message)  # it has more than doubled
    assert len(told(server, "OverMemory")) == 1


def test_computing_under_a_higher_flag_is_reported(rig: Rig, server: Server) -> None:
    plugin = start(rig, server)
    up, cheat = map(Page, admit(rig, plugin))
    up.raise_flag()

    def offends() -> object:
        cheat.step()
        return told(server, "YieldIgnored")

    until(under_a_flag(up, offends))
    (message,) = told(server, "YieldIgnored")
    assert message.startswith("gpu-0: default/s-1 computed ")
    assert message.endswith(" steps under the higher flag of default/g-1")
    for page in (up, cheat):
        page.close()


def test_a_lasting_offence_is_to_be_stopped_by_policy(rig: Rig, server: Server) -> None:
    rig.settings["offenders"] = Policy.STOP
    plugin = start(rig, server)
    up, cheat = map(Page, admit(rig, plugin))
    up.raise_flag()

    def stopped() -> object:
        cheat.step()
        return any(one.stop for one in held(server))

    until(under_a_flag(up, stopped), seconds=30)
    (one,) = held(server)
    assert (one.namespace, one.pod, one.uid) == ("default", "s-1", UID)
    assert one.reason == names.YIELD_IGNORED
    assert len(told(server, "YieldIgnored")) == 1
    for page in (up, cheat):
        page.close()
    rig.kubelet.finish(rig.kubelet.pods["default", "s-1"])
    until(lambda: not held(server))


def test_a_pod_that_keeps_silent_is_told_by_its_load(rig: Rig, server: Server) -> None:
    hosted(rig, {71: f"0::/kubepods/pod{UID}/1"})
    plugin = start(rig, server)
    up = Page(admit(rig, plugin)[0])
    rig.machine.set(0, processes=[{"pid": 71, "mib": 100, "sm": 60}])
    up.raise_flag()
    until(under_a_flag(up, lambda: told(server, "YieldIgnored")), seconds=30)
    (message,) = told(server, "YieldIgnored")
    assert "default/s-1 used 60 % of the SMs under the higher flag of default/g-1" in message
    up.close()
