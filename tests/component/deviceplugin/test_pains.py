"""The ten complaints about device plugins that users repeat, each reproduced and shown absent.

By number of `docs/deviceplugin.md`, which names the reports; details are in the other files.
"""

from pathlib import Path

import pytest
from deviceprocess import Process
from devicerig import Rig, until
from fakekubelet import Kubelet, UnexpectedAdmissionError, running
from fakenvml import machine as fake
from sojourn_api import arbiter, names
from sojourn_api.arbiter_page import Page
from sojourn_api.arbiter_watch import Watch

GPU0, GPU1 = names.gpu_resource(0), names.gpu_resource(1)
GIB = 1024**3


def test_1_an_unhealthy_gpu_recovers_by_rule_without_a_restart_of_the_plugin(rig: Rig) -> None:
    plugin = rig.ready()
    rig.machine.xid(0, 95)
    until(lambda: rig.sick(0))
    rig.machine.set(0, error="RESET_REQUIRED")
    until(lambda: plugin.node.offer(0).verdict.reason == "GpuLost")
    rig.machine.set(0, error="")  # the reset is over
    until(lambda: rig.healthy(0))
    assert rig.plugin is plugin


@pytest.mark.parametrize("fatal", [109, 140])
def test_2_xids_mean_what_the_vendors_catalogue_says(rig: Rig, fatal: int) -> None:
    """94 and 31 ask to restart an application, 109 and 140 to reset the GPU."""
    plugin = rig.ready()
    lists = rig.kubelet.lists(GPU0)
    for number in (94, 31, fatal):
        rig.machine.xid(0, number)
    until(lambda: rig.sick(0))
    assert plugin.node.offer(0).verdict.reason == f"Xid{fatal}"
    assert rig.kubelet.lists(GPU0) == lists + 1, "the others condemned nothing"


def test_3_a_zombie_driver_gives_no_storm_of_pods(rig: Rig) -> None:
    """The kubelet counts zero, so nothing is sent here; one lost GPU costs only itself."""
    rig.machine.gpus = [fake.gpu(n) for n in range(4)]
    rig.ready()
    rig.machine.set(2, error="GPU_IS_LOST")
    until(lambda: rig.sick(2))
    assert [rig.kubelet.allocatable(rig.resource(n)) for n in range(4)] == [79, 79, 0, 79]
    rig.machine.error = "UNKNOWN"
    rig.machine.write()
    until(lambda: not any(rig.kubelet.allocatable(rig.resource(n)) for n in range(4)))
    with pytest.raises(UnexpectedAdmissionError, match="Available: 0"):
        rig.kubelet.admit("p", {GPU0: 1})


def test_4_after_a_kubelet_restart_running_pods_keep_their_devices(rig: Rig) -> None:
    rig.ready()
    pod = rig.kubelet.admit("s-1", {GPU0: 30})
    rig.kubelet.restart()
    until(lambda: rig.kubelet.allocatable(GPU0) == 79)
    other = rig.kubelet.admit("s-2", {GPU0: 49})
    assert not pod.devices[GPU0] & other.devices[GPU0]
    assert Path(pod.responses[GPU0].mounts[1].host_path).exists()


def test_5_a_mig_gpu_without_instances_has_no_capacity_at_all(rig: Rig) -> None:
    rig.ready()
    rig.machine.set(0, mig={"mode": 1, "instances": []})
    until(lambda: rig.kubelet.capacity(GPU0) == 0)
    part = {"id": 1, "uuid": "MIG-1", "profile": "1g", "start": 0}
    rig.machine.set(0, mig={"mode": 1, "instances": [part]})
    small = names.mig_resource("1g.10gb")
    until(lambda: rig.kubelet.allocatable(small) == 1)
    assert rig.kubelet.capacity(GPU0) == 0, "nothing is counted twice"
    rig.machine.set(0, mig={"mode": 0})
    until(lambda: rig.kubelet.allocatable(GPU0) == 79 and rig.kubelet.capacity(small) == 0)


def test_6_slices_differ_by_model_and_never_cross_gpus(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1, name=fake.H200, mib=143771)]
    rig.settings["slice_bytes_by_model"] = (("H200", 4 * GIB),)
    rig.ready()
    assert (rig.kubelet.capacity(GPU0), rig.kubelet.capacity(GPU1)) == (79, 34)
    pod = rig.kubelet.admit("s-1", {GPU0: 60})
    assert all(device.startswith("00000000-") for device in pod.devices[GPU0])
    with pytest.raises(UnexpectedAdmissionError):  # 19 + 34 are free, on two GPUs
        rig.kubelet.admit("s-2", {GPU0: 30})


def test_7_sharing_needs_no_daemon_whose_failure_hurts_all(rig: Rig) -> None:
    """The arbiter is files and a kernel lock: it works on while the plugin is away."""
    plugin = rig.ready()
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    slot = given.envs[names.env_gpu_slot(0)]
    plugin.node._slots[0].promote(slot, arbiter.Tier(priority=2500))
    rig.stop()
    page = Page(Path(given.mounts[1].host_path))
    watch = Watch(Path(given.mounts[0].host_path))
    page.raise_flag()
    assert watch.higher_raised(1000)
    page.lower_flag()
    assert not watch.higher_raised(1000)
    watch.close()
    page.close()


def test_8_what_holds_a_pod_to_its_memory_is_said_of_each_and_never_guessed(rig: Rig) -> None:
    """A pod that takes twice its part: nobody claims to have stopped it, and it is seen."""
    plugin = rig.ready()
    rig.kubelet.admit("s-1", {GPU0: 10})
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    rig.machine.set(0, processes=[{"pid": 4242, "mib": 20 * 1024}])
    until(lambda: rig.kubelet.allocatable(GPU0) == 79 - 10)  # its surplus is nobody else's to get
    key = {"gpu": "0", "namespace": "default", "pod": "s-1", "enforcement": "none"}
    assert plugin.metrics.registry.get_sample_value("sojourn_grant_enforcement", key) == 1
    text = (Path(__file__).parents[3] / "docs" / "deviceplugin.md").read_text()
    for word in ("GPU memory", "compute", "fault domain", "not enforced"):
        assert word in text


def test_9_pods_that_ask_for_nothing_are_given_nothing(rig: Rig) -> None:
    """Nothing of ours reaches a container but through Allocate, and no catch-all is in it."""
    rig.ready()
    given = rig.kubelet.admit("s-1", {GPU0: 1}).responses[GPU0]
    assert all(key.startswith("SOJOURN_GPU_0_") for key in given.envs)
    assert not given.annotations
    assert not given.devices  # none on this machine


def test_10_a_library_that_comes_late_is_found_without_a_restart(short: Path) -> None:
    """As a driver's container installs it, beside a plugin that runs already."""
    folder = short / "lib"
    folder.mkdir()
    library = folder / fake.LIBRARY
    library.touch()
    with running(Kubelet(short)) as kubelet:
        process = Process(short, library, kubelet)
        process.start()
        assert process.get(names.PATH_HEALTH) == "ok\n"
        assert "NVML cannot be initialised" in process.run("--check").stdout
        assert not kubelet.knows(GPU0)
        fake.build(short).replace(library)
        until(lambda: kubelet.allocatable(GPU0) == 79)
        process.kill()


def test_10_a_driver_that_is_loaded_late_is_taken_up_as_well(rig: Rig) -> None:
    rig.machine.error = "DRIVER_NOT_LOADED"
    plugin = rig.start()
    until(lambda: plugin._reader.latest().error.startswith("NVML cannot be initialised"))
    assert plugin.node.ordinals() == ()
    rig.machine.error = ""
    rig.machine.write()
    until(lambda: rig.healthy(0))
