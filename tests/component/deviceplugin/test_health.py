"""GPUs that fail and come back, as the kubelet sees them; the rules alone are in the unit tests."""

import time

import pytest
from devicerig import Rig, until
from fakekubelet import UnexpectedAdmissionError
from fakenvml import machine as fake
from sojourn_api import names

GPU0 = names.gpu_resource(0)


def reason(rig: Rig, ordinal: int = 0) -> str:
    assert rig.plugin is not None
    return rig.plugin.node.offer(ordinal).verdict.reason


def three(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1), fake.gpu(2)]
    rig.ready()


def test_a_lost_gpu_does_not_hurt_its_neighbours(rig: Rig) -> None:
    three(rig)
    rig.machine.set(1, error="GPU_IS_LOST")
    until(lambda: rig.sick(1))
    assert rig.healthy(0)
    assert rig.healthy(2)
    rig.kubelet.admit("s-1", {GPU0: 5})


def test_a_gpu_that_fell_off_the_bus_keeps_its_resource_without_devices_to_give(rig: Rig) -> None:
    """NVML's indices shift; resources must not."""
    three(rig)
    del rig.machine.gpus[0]
    rig.machine.write()
    until(lambda: rig.sick(0))
    assert reason(rig) == "GpuMissing"
    assert rig.kubelet.capacity(GPU0) == 79
    assert rig.healthy(1)
    assert rig.healthy(2)


def test_a_lost_gpu_that_answers_again_is_offered_again(rig: Rig) -> None:
    rig.ready()
    rig.machine.set(0, error="GPU_IS_LOST")
    until(lambda: rig.sick(0))
    rig.machine.set(0, error="")
    until(lambda: rig.healthy(0))


def test_after_a_fatal_xid_answering_is_no_proof_of_health(rig: Rig) -> None:
    rig.ready()
    rig.machine.xid(0, 95)
    until(lambda: rig.sick(0))
    lists = rig.kubelet.lists(GPU0)
    probes = rig.machine.epoch + 5
    assert rig.plugin is not None
    seen = rig.plugin._reader
    for _ in range(probes):  # NVML answers well, again and again
        seen.fresh.wait(5)
        until(lambda: not seen.fresh.is_set())
    assert rig.sick(0)
    assert rig.kubelet.lists(GPU0) == lists
    assert reason(rig) == "Xid95"


def test_a_condemned_gpu_stays_so_over_a_restart_of_the_plugin(rig: Rig) -> None:
    rig.ready()
    rig.machine.xid(0, 95)
    until(lambda: rig.sick(0))
    rig.stop()
    rig.start()
    until(lambda: rig.kubelet.capacity(GPU0) == 79 and reason(rig) == "Xid95")
    assert rig.sick(0)


def test_a_restart_of_the_driver_brings_back_what_needed_a_reset(rig: Rig) -> None:
    rig.ready()
    rig.machine.xid(0, 48)
    until(lambda: rig.sick(0))
    rig.machine.restart_driver()
    until(lambda: rig.healthy(0))
    rig.machine.xid(0, 48)  # events are heard again after it
    until(lambda: rig.sick(0))


def test_an_application_error_leaves_the_gpu_alone(rig: Rig) -> None:
    rig.ready()
    lists = rig.kubelet.lists(GPU0)
    for number in (13, 31, 43, 45, 94):
        rig.machine.xid(0, number)
    rig.machine.xid(0, 62)
    until(lambda: rig.sick(0))
    assert reason(rig) == "Xid62"
    assert rig.kubelet.lists(GPU0) == lists + 1


def test_the_drivers_own_word_counts_both_ways(rig: Rig) -> None:
    rig.ready()
    rig.machine.set(0, recovery=1)
    until(lambda: rig.sick(0))
    assert reason(rig) == "ResetRequired"
    rig.machine.set(0, recovery=0)
    until(lambda: rig.healthy(0))


def test_a_sick_gpu_refuses_an_allocation_that_was_under_way(rig: Rig) -> None:
    """The kubelet may have chosen devices before it heard."""
    plugin = rig.ready()
    rig.machine.xid(0, 79)
    until(lambda: rig.sick(0))
    with pytest.raises(Exception, match=r"Xid79.*reboot the node"):
        plugin.node.allocate(GPU0, ["00000000-1"])
    with pytest.raises(UnexpectedAdmissionError):
        rig.kubelet.admit("s-1", {GPU0: 1})


def test_a_broken_nvml_makes_gpus_unhealthy_and_nothing_crashes(rig: Rig) -> None:
    plugin = rig.ready()
    rig.machine.error = "UNKNOWN"
    rig.machine.write()
    until(lambda: rig.sick(0))
    assert reason(rig) == "NvmlUnavailable"
    assert plugin.registrar.is_alive()
    rig.machine.error = ""
    rig.machine.write()
    until(lambda: rig.healthy(0))


def test_a_plugin_started_under_a_broken_nvml_offers_its_known_gpus_as_sick(rig: Rig) -> None:
    rig.ready()
    rig.stop()
    rig.machine.error = "DRIVER_NOT_LOADED"
    rig.start()
    until(lambda: rig.kubelet.capacity(GPU0) == 79)
    assert rig.sick(0)
    rig.machine.error = ""
    rig.machine.write()
    until(lambda: rig.healthy(0))


def test_allocate_does_not_wait_for_a_hanging_nvml(rig: Rig) -> None:
    rig.settings["nvml_patience_seconds"] = 600
    reader = rig.ready()._reader
    rig.machine.delays = {"*": 600_000}
    rig.machine.write()
    until(lambda: time.monotonic() - reader._done > 3)  # it looks every second
    seen = reader.latest()
    for n in range(20):
        rig.kubelet.admit(f"s-{n}", {GPU0: 1})
    assert reader.latest() is seen, "all were served before NVML answered once"
    assert rig.healthy(0)  # within the patience


def test_an_nvml_that_hangs_for_long_makes_its_gpus_unhealthy(rig: Rig) -> None:
    rig.settings["nvml_patience_seconds"] = 2
    rig.ready()
    rig.machine.delays = {"nvmlDeviceGetMemoryInfo_v2": 60_000}
    rig.machine.write()
    until(lambda: rig.sick(0))
    assert reason(rig) == "NvmlUnavailable"
    rig.machine.delays = {}
    rig.machine.write()
    until(lambda: rig.healthy(0))


def test_uncorrected_memory_errors_are_counted_and_judged_by_what_they_ask_for(rig: Rig) -> None:
    """A contained one (XID 94) has cost its application, not the GPU."""
    plugin = rig.ready()
    rig.machine.set(0, ecc_double=3)
    rig.machine.xid(0, 94)
    value = plugin.metrics.registry.get_sample_value
    key = {"gpu": "0", "uuid": fake.uuid(0)}
    until(lambda: value("sojourn_gpu_ecc_uncorrected_errors", key) == 3)
    assert rig.healthy(0)
    rig.machine.set(0, remap_pending=1)
    until(lambda: rig.sick(0))
    assert reason(rig) == "RowRemapPending"


def test_foreign_memory_takes_free_slices_out_of_service_and_gives_them_back(rig: Rig) -> None:
    rig.ready()
    rig.machine.set(0, processes=[{"pid": 4242, "mib": 10 * 1024 + 1}])
    until(lambda: rig.kubelet.allocatable(GPU0) == 79 - 11)
    assert rig.kubelet.capacity(GPU0) == 79
    rig.machine.set(0, processes=[])
    until(lambda: rig.kubelet.allocatable(GPU0) == 79)


def test_memory_within_grants_is_not_foreign_and_held_slices_stay(rig: Rig) -> None:
    rig.ready()
    pod = rig.kubelet.admit("s-1", {GPU0: 40})
    rig.machine.set(0, processes=[{"pid": 4242, "mib": 50 * 1024}])
    until(lambda: rig.kubelet.allocatable(GPU0) == 69)
    devices = rig.kubelet.devices(GPU0)
    assert all(devices[device] for device in pod.devices[GPU0])


def test_another_plugins_gpu_is_not_offered(rig: Rig) -> None:
    rig.kubelet.foreign = {"nvidia.com/gpu": [f"{fake.uuid(0)}::3"]}
    rig.start()
    until(lambda: rig.kubelet.capacity(GPU0) == 79 and reason(rig) == "OfferedTwice")
    until(lambda: rig.sick(0))


def test_a_gpu_that_appears_later_is_offered_without_a_restart(rig: Rig) -> None:
    rig.ready()
    rig.machine.gpus.append(fake.gpu(1))
    rig.machine.write()
    until(lambda: rig.healthy(1))


def test_a_node_without_gpus_idles(rig: Rig) -> None:
    rig.machine.gpus = []
    plugin = rig.start()
    until(lambda: plugin.ready)
    assert plugin.node.ordinals() == ()
