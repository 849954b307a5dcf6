"""MIG: instances as devices, followed as they are reconfigured, and no slices beside them."""

import pytest
from devicerig import Rig, until
from fakekubelet import UnexpectedAdmissionError
from fakenvml import machine as fake
from sojourn_api import names
from sojourn_deviceplugin.config import DeviceList

GPU0 = names.gpu_resource(0)
SMALL, LARGE = names.mig_resource("1g.10gb"), names.mig_resource("3g.40gb")


def instance(number: int, profile: str, start: int) -> dict[str, object]:
    uuid = f"MIG-{number:08x}-0000-4000-8000-000000000000"
    return {"id": number, "uuid": uuid, "profile": profile, "start": start}


def mixed(rig: Rig) -> None:
    parts = [instance(1, "3g", 0), instance(2, "1g", 4), instance(3, "1g", 5)]
    rig.machine.gpus = [fake.gpu(0, mig={"mode": 1, "instances": parts}), fake.gpu(1)]
    rig.start()
    until(lambda: rig.kubelet.allocatable(SMALL) == 2 and rig.kubelet.allocatable(LARGE) == 1)


def test_instances_are_devices_and_the_gpu_has_no_slices(rig: Rig) -> None:
    mixed(rig)
    until(lambda: rig.kubelet.knows(GPU0) and rig.healthy(1))
    assert rig.kubelet.capacity(GPU0) == 0
    pod = rig.kubelet.admit("p", {SMALL: 2})
    given = pod.responses[SMALL].envs[names.env_mig_uuids("1g.10gb")]
    assert given.split(",") == sorted(pod.devices[SMALL])


def test_cdi_names_the_instances(rig: Rig) -> None:
    rig.settings["device_list_strategy"] = DeviceList.CDI
    mixed(rig)
    pod = rig.kubelet.admit("p", {LARGE: 1})
    (device,) = pod.devices[LARGE]
    assert [cdi.name for cdi in pod.responses[LARGE].cdi_devices] == [f"nvidia.com/gpu={device}"]


def test_a_reconfiguration_is_seen_without_a_restart(rig: Rig) -> None:
    mixed(rig)
    rig.machine.set(0, mig={"mode": 1, "instances": [instance(4, "1g", 0)]})
    until(lambda: rig.kubelet.capacity(LARGE) == 0 and rig.kubelet.capacity(SMALL) == 1)
    assert set(rig.kubelet.devices(SMALL)) == {instance(4, "1g", 0)["uuid"]}


def test_uniform_instances_of_all_gpus_are_one_resource(rig: Rig) -> None:
    parts = [[instance(8 * gpu + n, "1g", n) for n in range(7)] for gpu in (0, 1)]
    rig.machine.gpus = [fake.gpu(gpu, mig={"mode": 1, "instances": parts[gpu]}) for gpu in range(2)]
    rig.start()
    until(lambda: rig.kubelet.allocatable(SMALL) == 14)
    rig.machine.set(1, mig={"mode": 1, "instances": [instance(20, "3g", 0)]})
    until(lambda: rig.kubelet.capacity(SMALL) == 7 and rig.kubelet.capacity(LARGE) == 1)
    assert not rig.kubelet.capacity(GPU0)


def test_mig_mode_switches_slices_off_and_on_again(rig: Rig) -> None:
    rig.ready()
    rig.machine.set(0, mig={"mode": 1, "instances": [instance(1, "1g", 0)]})
    until(lambda: rig.kubelet.capacity(GPU0) == 0 and rig.kubelet.capacity(SMALL) == 1)
    rig.machine.set(0, mig={"mode": 0, "instances": []})
    until(lambda: rig.kubelet.capacity(GPU0) == 79 and rig.kubelet.capacity(SMALL) == 0)


def test_a_profile_that_went_away_while_the_plugin_did_not_run_is_counted_as_none(
    rig: Rig,
) -> None:
    """Else the kubelet counts the last instances for five minutes more."""
    mixed(rig)
    rig.stop()
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1)]
    rig.start()
    until(lambda: rig.healthy(0) and rig.kubelet.lists(LARGE) and rig.kubelet.lists(SMALL))
    until(lambda: rig.kubelet.capacity(LARGE) == rig.kubelet.capacity(SMALL) == 0)


def test_a_sick_gpu_takes_its_instances_along(rig: Rig) -> None:
    mixed(rig)
    rig.machine.xid(0, 95)
    until(lambda: rig.kubelet.allocatable(SMALL) == 0)
    assert rig.kubelet.capacity(SMALL) == 2
    with pytest.raises(UnexpectedAdmissionError):
        rig.kubelet.admit("p", {SMALL: 1})
    assert rig.healthy(1)


def test_placements_that_block_larger_profiles_show_in_the_metrics(rig: Rig) -> None:
    """Two of eight memory slices, badly placed, leave no room for half a GPU."""
    parts = [instance(1, "1g", 1), instance(2, "1g", 6)]
    rig.machine.gpus = [fake.gpu(0, mig={"mode": 1, "instances": parts})]
    plugin = rig.start()
    until(lambda: rig.kubelet.allocatable(SMALL) == 2)
    value = plugin.metrics.registry.get_sample_value
    labels = {"uuid": fake.uuid(0), "profile": "3g.40gb"}
    assert value("sojourn_mig_remaining", labels) == 0
    assert value("sojourn_mig_ideal", labels) == 2
    assert value("sojourn_mig_remaining", labels | {"profile": "1g.10gb"}) == 5
