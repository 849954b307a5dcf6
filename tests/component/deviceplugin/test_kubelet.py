"""The plugin under a kubelet: registration, slices, Allocate, and restarts of either side."""

from pathlib import Path

import pytest
from devicerig import Rig, until
from fakekubelet import UnexpectedAdmissionError
from fakenvml import machine as fake
from sojourn_api import names
from sojourn_api.arbiter_page import Page
from sojourn_deviceplugin.config import DeviceList

GPU0, GPU1 = names.gpu_resource(0), names.gpu_resource(1)


def test_each_gpu_is_a_resource_of_its_own(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1, name=fake.H200, mib=143771)]
    rig.ready()
    assert rig.kubelet.capacity(GPU0) == 79
    assert rig.kubelet.capacity(GPU1) == 139
    assert set(rig.kubelet.devices(GPU0)) == {f"00000000-{n}" for n in range(79)}


def test_a_container_is_told_its_gpu_bytes_and_pages(rig: Rig) -> None:
    rig.ready()
    pod = rig.kubelet.admit("s-1", {GPU0: 12})
    given = pod.responses[GPU0]
    assert given.envs[names.env_gpu_uuid(0)] == fake.uuid(0)
    assert given.envs[names.env_gpu_bytes(0)] == str(12 * 1024**3)
    assert given.envs[names.env_gpu_slices(0)] == "12"
    mounts = {mount.container_path: mount for mount in given.mounts}
    own, everybody = mounts[names.arbiter_own(0)], mounts[names.arbiter_all(0)]
    assert not own.read_only
    assert everybody.read_only
    slot = given.envs[names.env_gpu_slot(0)]
    assert Path(own.host_path) == Path(everybody.host_path) / slot / "pod"
    Page(Path(own.host_path)).close()


def test_with_cdi_the_gpu_is_named_and_no_device_file_given(rig: Rig) -> None:
    rig.settings |= {"device_list_strategy": DeviceList.CDI, "cdi_kind": "example.com/gpu"}
    rig.ready()
    given = rig.kubelet.admit("s-1", {GPU0: 12}).responses[GPU0]
    assert [device.name for device in given.cdi_devices] == [f"example.com/gpu={fake.uuid(0)}"]
    assert not given.devices


def test_two_gpus_in_one_pod_share_no_key_and_no_mount(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1)]
    rig.ready()
    pod = rig.kubelet.admit("s-1", {GPU0: 10, GPU1: 20})
    first, second = pod.responses[GPU0], pod.responses[GPU1]
    assert not set(first.envs) & set(second.envs)
    paths = [{mount.container_path for mount in part.mounts} for part in (first, second)]
    assert not paths[0] & paths[1]


def test_what_is_full_is_refused_by_the_kubelets_own_count(rig: Rig) -> None:
    rig.ready()
    rig.kubelet.admit("s-1", {GPU0: 60})
    with pytest.raises(UnexpectedAdmissionError, match="Available: 19"):
        rig.kubelet.admit("s-2", {GPU0: 60})


def test_freed_slices_are_given_again_with_another_page(rig: Rig) -> None:
    plugin = rig.ready()
    first = rig.kubelet.admit("s-1", {GPU0: 60})
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    rig.kubelet.finish(first)
    second = rig.kubelet.admit("s-2", {GPU0: 60})
    key = names.env_gpu_slot(0)
    assert first.responses[GPU0].envs[key] != second.responses[GPU0].envs[key]
    until(lambda: [g.holder and g.holder.pod for g in plugin.node.snapshot()[2]] == ["s-2"])


def test_a_restarted_kubelet_knows_the_plugin_again_within_a_second(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1)]
    rig.ready()
    times = []
    for _ in range(10):
        rig.kubelet.restart()
        times.append(until(lambda: rig.kubelet.allocatable(GPU0) and rig.kubelet.allocatable(GPU1)))
    assert max(times) <= 1.0, times


def test_a_kubelet_that_refuses_at_first_is_asked_again(rig: Rig) -> None:
    rig.kubelet.refuse = "still starting"
    plugin = rig.start()
    until(plugin.node.ordinals)
    until(lambda: plugin.registrar._last_error)
    rig.kubelet.refuse = ""
    until(lambda: rig.kubelet.allocatable(GPU0) == 79)


def test_a_plugin_restart_keeps_ids_grants_and_pages(rig: Rig) -> None:
    rig.ready()
    before = rig.kubelet.devices(GPU0)
    pod = rig.kubelet.admit("s-1", {GPU0: 30})
    page = Path(pod.responses[GPU0].mounts[1].host_path)
    with_lock = Page(page)
    rig.stop()
    plugin = rig.ready()
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    assert rig.kubelet.devices(GPU0).keys() == before.keys()
    (grant,) = plugin.node.snapshot()[2]
    assert grant.devices == pod.devices[GPU0]
    state = plugin.node.page(grant)
    assert state is not None
    assert state.locked
    with_lock.close()


def test_a_grant_whose_pod_ended_while_the_plugin_was_away_is_over(rig: Rig) -> None:
    rig.ready()
    pod = rig.kubelet.admit("s-1", {GPU0: 30})
    rig.stop()
    rig.kubelet.finish(pod)
    rig.kubelet.grow_old()
    plugin = rig.ready()
    until(lambda: not plugin.node.snapshot()[2])
    until(lambda: not Path(pod.responses[GPU0].mounts[1].host_path).exists())


def test_grants_survive_the_loss_of_the_plugins_own_files(rig: Rig) -> None:
    """/run was wiped, pods run on: they are counted, without a page."""
    rig.ready()
    pod = rig.kubelet.admit("s-1", {GPU0: 30})
    rig.stop()
    for path in sorted((rig.folder / "run").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    plugin = rig.ready()
    until(lambda: plugin.node.snapshot()[2])
    (grant,) = plugin.node.snapshot()[2]
    assert (grant.devices, grant.slot) == (pod.devices[GPU0], "")


def test_ordinals_stay_with_their_gpus_and_are_not_used_again(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(0), fake.gpu(1)]
    rig.ready()
    rig.stop()
    rig.machine.gpus = [fake.gpu(2), fake.gpu(1)]  # the first was replaced, indices as before
    plugin = rig.start()
    until(lambda: len(plugin.node.ordinals()) == 3)
    until(lambda: rig.healthy(1) and rig.healthy(2) and rig.sick(0))
    offers = {offer.gpu.ordinal: offer.gpu.uuid for offer in plugin.node.snapshot()[1]}
    assert offers == {0: fake.uuid(0), 1: fake.uuid(1), 2: fake.uuid(2)}


def test_the_preferred_slices_are_the_lowest(rig: Rig) -> None:
    rig.ready()
    available = [f"00000000-{n}" for n in (12, 3, 100, 7)]
    assert rig.kubelet.preferred(GPU0, available, 2) == ["00000000-3", "00000000-7"]


def test_strange_devices_are_refused_by_name(rig: Rig) -> None:
    plugin = rig.ready()
    with pytest.raises(Exception, match="no such slices: nonsense-1"):
        plugin.node.allocate(GPU0, ["nonsense-1"])


def test_a_resized_slice_waits_until_the_gpu_is_empty(
    rig: Rig,
) -> None:
    rig.ready()
    pod = rig.kubelet.admit("s-1", {GPU0: 30})
    rig.stop()
    rig.settings["slice_bytes"] = 2 * 1024**3
    plugin = rig.ready()
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    assert rig.kubelet.capacity(GPU0) == 79
    rig.kubelet.finish(pod)
    until(lambda: rig.kubelet.capacity(GPU0) == 39)


def test_a_list_that_the_kubelet_would_drop_is_never_sent(rig: Rig) -> None:
    """Beyond 4 MiB its client refuses the message, and the resource would silently vanish."""
    rig.machine.gpus = [fake.gpu(0, mib=40_000_000), fake.gpu(1)]
    rig.settings["slice_bytes"] = 256 * 1024**2
    plugin = rig.start()
    until(lambda: rig.healthy(1) and rig.kubelet.knows(GPU0))
    assert rig.kubelet.capacity(GPU0) == 0
    assert rig.kubelet.error(GPU0) == ""
    verdict = plugin.node.offer(0).verdict
    assert verdict.reason == "TooManySlices"
    assert "raise sliceBytes" in verdict.message


def test_sixteen_gpus_of_288_slices_are_counted(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(n, name="NVIDIA B300", mib=289 * 1024) for n in range(16)]
    rig.start()
    resources = [names.gpu_resource(n) for n in range(16)]
    until(lambda: all(rig.kubelet.allocatable(resource) == 288 for resource in resources))


def test_a_restart_of_the_plugin_is_no_moment_of_sickness(rig: Rig) -> None:
    """The first list after a restart has healthy devices: the scheduler sees no dip."""
    rig.ready()
    rig.stop()
    rig.start()
    until(lambda: len(rig.kubelet.registrations) == 2 and rig.kubelet.lists(GPU0))
    assert rig.healthy(0)


def test_known_gpus_are_registered_even_if_nvml_hangs_from_the_start(rig: Rig) -> None:
    rig.ready()
    rig.stop()
    rig.kubelet.restart()
    rig.machine.delays = {"*": 60_000}
    rig.start()
    until(lambda: rig.kubelet.capacity(GPU0) == 79, seconds=15)
    assert rig.sick(0)
