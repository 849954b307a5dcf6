"""What is counted at /metrics, by value; that all of it stands in the docs is `test_publish`'s."""

from pathlib import Path

import grpc
import pytest
from devicerig import Rig, until
from fakenvml import machine as fake
from sojourn_api import names
from sojourn_api.arbiter_page import Page
from sojourn_api.arbiter_turn import Turns

GPU0 = names.gpu_resource(0)
OF = "sojourn_deviceplugin_"


def test_allocations_registrations_and_changes_of_health_are_counted(rig: Rig) -> None:
    value = rig.ready().metrics.registry.get_sample_value
    rig.kubelet.admit("s-1", {GPU0: 1})
    with pytest.raises(grpc.RpcError):
        rig.kubelet.allocate(GPU0, ["nonsense-1"])
    allocations = f"{OF}allocations_total"
    for outcome in ("granted", "refused"):
        assert value(allocations, {"resource": GPU0, "outcome": outcome}) == 1, outcome
    assert value(f"{OF}allocate_seconds_count") == 2
    assert value(f"{OF}allocate_seconds_bucket", {"le": "+Inf"}) == 2
    rig.kubelet.restart()
    until(lambda: value(f"{OF}registrations_total", {"resource": GPU0}) == 2)
    rig.machine.xid(0, 62)
    until(lambda: value(f"{OF}health_changes_total", {"gpu": "0", "reason": "Xid62"}) == 1)
    assert value(f"{OF}xids_total", {"uuid": fake.uuid(0), "xid": "62"}) == 1


def test_who_waits_and_how_long_is_told(rig: Rig) -> None:
    plugin = rig.ready()
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    page = Page(Path(given.mounts[1].host_path))
    everybody, slot = Path(given.mounts[0].host_path), given.envs[names.env_gpu_slot(0)]
    key = {"gpu": "0", "namespace": "default", "pod": "s-1"}

    def waiting() -> float:
        page.beat()
        found = plugin.metrics.registry.get_sample_value("sojourn_grant_waiting_seconds", key)
        assert found is not None
        return found

    assert waiting() == 0
    Turns(everybody, page, own_slot=slot).want(wants=True)
    until(lambda: waiting() > 1)
    page.step()
    until(lambda: waiting() == 0)
    page.close()
