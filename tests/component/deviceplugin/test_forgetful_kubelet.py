"""A kubelet that has started anew, and does not know (yet, or ever) what running pods have."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicerig import Rig, until
from fakekubelet import Pod, UnexpectedAdmissionError
from fakenvml import machine as fake
from sojourn_api import names
from sojourn_api.arbiter_page import Page
from sojourn_deviceplugin import slices
from sojourn_deviceplugin.plugin import Plugin

GPU0 = names.gpu_resource(0)
ALL = 79


@pytest.fixture
def plugin(rig: Rig) -> Plugin:
    return rig.ready()


@pytest.fixture
def pod(rig: Rig, plugin: Plugin) -> Pod:
    pod = rig.kubelet.admit("s-1", {GPU0: 30})
    until(lambda: any(grant.holder for grant in plugin.node.snapshot()[2]))
    return pod


@pytest.fixture
def running(pod: Pod) -> Iterator[Page]:
    """The pod's runtime: it owns its page as long as it lives."""
    page = Page(Path(pod.responses[GPU0].mounts[1].host_path))
    yield page
    page.close()


def restart(rig: Rig, *, lose_checkpoint: bool = False, syncing: bool = False) -> None:
    """And wait until the plugin has asked the new one a few times."""
    rig.kubelet.syncing = syncing
    rig.kubelet.restart(lose_checkpoint=lose_checkpoint)
    until(lambda: rig.kubelet.allocatable(GPU0) == ALL)
    asked = rig.kubelet.listings
    until(lambda: rig.kubelet.listings >= asked + 2)


def test_what_a_starting_kubelet_does_not_list_yet_is_not_over(
    rig: Rig, plugin: Plugin, pod: Pod
) -> None:
    (before,) = plugin.node.snapshot()[2]
    restart(rig, syncing=True)
    assert plugin.node.snapshot()[2] == (before,)
    rig.kubelet.syncing = False
    asked = rig.kubelet.listings
    until(lambda: rig.kubelet.listings >= asked + 2)
    assert plugin.node.snapshot()[2] == (before,)
    assert Path(pod.responses[GPU0].mounts[1].host_path).exists()
    rig.kubelet.finish(pod)
    until(lambda: not plugin.node.snapshot()[2])


def test_what_it_has_listed_once_ends_as_ever(rig: Rig, plugin: Plugin, pod: Pod) -> None:
    restart(rig)
    rig.kubelet.finish(pod)
    until(lambda: not plugin.node.snapshot()[2], seconds=5)


@pytest.mark.usefixtures("running")
def test_what_lives_is_not_given_again_by_a_kubelet_that_lost_its_checkpoint(
    rig: Rig, plugin: Plugin, pod: Pod
) -> None:
    restart(rig, lose_checkpoint=True)
    with pytest.raises(UnexpectedAdmissionError, match="in use by default/s-1"):
        rig.kubelet.admit("s-2", {GPU0: ALL})
    (grant,) = plugin.node.snapshot()[2]
    assert grant.devices == pod.devices[GPU0]
    assert Path(pod.responses[GPU0].mounts[1].host_path).exists()


@pytest.mark.usefixtures("running", "plugin")
def test_a_kubelet_that_asks_is_led_to_what_is_really_free(rig: Rig, pod: Pod) -> None:
    restart(rig, lose_checkpoint=True)
    everything = slices.device_ids(fake.uuid(0), ALL)
    free = rig.kubelet.preferred(GPU0, everything, ALL - 30)
    assert set(free) == set(everything) - pod.devices[GPU0]
    assert len(rig.kubelet.preferred(GPU0, everything, ALL)) == ALL


def test_it_is_free_when_the_runtime_has_ended(rig: Rig, plugin: Plugin, pod: Pod) -> None:
    runtime = Page(Path(pod.responses[GPU0].mounts[1].host_path))
    restart(rig, lose_checkpoint=True)
    runtime.close()
    until(lambda: not plugin.node.snapshot()[2], seconds=5)
    rig.kubelet.admit("s-2", {GPU0: ALL})


@pytest.mark.usefixtures("running")
def test_both_restart_at_once_and_what_lives_is_still_known(rig: Rig, pod: Pod) -> None:
    rig.stop()
    rig.kubelet.restart(lose_checkpoint=True)
    plugin = rig.ready()
    asked = rig.kubelet.listings
    until(lambda: rig.kubelet.listings >= asked + 4)
    (grant,) = plugin.node.snapshot()[2]
    assert grant.devices == pod.devices[GPU0]
    with pytest.raises(UnexpectedAdmissionError, match="has forgotten"):
        rig.kubelet.admit("s-2", {GPU0: ALL})


def test_both_restart_at_once_and_what_is_not_listed_yet_is_not_over(rig: Rig, pod: Pod) -> None:
    """Not even where no process has locked the page yet: the pod may be starting."""
    page = Path(pod.responses[GPU0].mounts[1].host_path)
    rig.stop()
    rig.kubelet.syncing = True
    rig.kubelet.restart()
    plugin = rig.ready()
    begin = time.monotonic()
    until(lambda: time.monotonic() - begin > 2.5)  # longer than after a restart of the plugin alone
    asked = rig.kubelet.listings
    until(lambda: rig.kubelet.listings >= asked + 2)
    (grant,) = plugin.node.snapshot()[2]
    assert page.exists()
    rig.kubelet.syncing = False
    until(lambda: plugin.node.snapshot()[2][0].holder)
    assert plugin.node.snapshot()[2][0].slot == grant.slot
