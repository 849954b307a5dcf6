"""Who holds a grant to its memory: the driver where it can, MPS where its daemon answers.

The driver is the fake NVML, whose answers `test_fakenvml` compares with the documented ones.
"""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from devicerig import Rig, until
from nodeapi import Server, session_pod
from sojourn_api import arbiter, names
from sojourn_api.access import Access
from sojourn_api.arbiter_page import Page
from sojourn_deviceplugin import mps
from sojourn_deviceplugin.plugin import Plugin

GPU0 = names.gpu_resource(0)
GIB = 2**30
UID = "0f6a3c1e-8f5b-4b7e-9a53-0c6d2f1e7a90"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.crash()


@pytest.fixture
def cgroup(rig: Rig) -> Path:
    """The pod's cgroup below a hierarchy of version 2, with its container's."""
    root = rig.folder / "cgroup"
    found = root / "kubepods" / f"pod{UID}"
    (found / "container").mkdir(parents=True)
    (root / "cgroup.controllers").touch()
    rig.settings["host_cgroup"] = root
    return found


def start(rig: Rig, server: Server) -> Plugin:
    server.pods = [session_pod("s-1", priority=1000, slices=30, uid=UID)]
    rig.access = Access(url=f"http://127.0.0.1:{server.server_port}")
    plugin = rig.ready()
    given = rig.kubelet.admit("s-1", {GPU0: 30}).responses[GPU0]
    until(lambda: any(grant.tier.bytes for grant in plugin.node.snapshot()[2]))
    assert given.envs[names.env_gpu_slices(0)] == "30"
    return plugin


def limit(cgroup: Path) -> int:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(cgroup).encode())
    pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByIndex(0), limits)
    return int(limits.hardLimit)


def enforced(plugin: Plugin) -> str:
    key = {"gpu": "0", "namespace": "default", "pod": "s-1"}
    value = plugin.metrics.registry.get_sample_value
    kinds = ("driver", "mps", "runtime", "none")
    found = [k for k in kinds if value("sojourn_grant_enforcement", key | {"enforcement": k})]
    return found[0] if len(found) == 1 else ""


@pytest.mark.parametrize("kept_by", [1, 2])
def test_the_driver_holds_a_pod_to_its_grant_and_no_longer(
    rig: Rig, server: Server, cgroup: Path, kept_by: int
) -> None:
    rig.machine.set(0, limits=kept_by)
    plugin = start(rig, server)
    until(lambda: enforced(plugin) == "driver")
    assert limit(cgroup) == limit(cgroup / "container") == 30 * GIB
    (held,) = rig.kubelet.pods.values()
    rig.kubelet.finish(held)
    until(lambda: limit(cgroup / "container") == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
    assert limit(cgroup) == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


def test_a_container_that_is_started_again_is_held_too(
    rig: Rig, server: Server, cgroup: Path
) -> None:
    rig.machine.set(0, limits=2)
    plugin = start(rig, server)
    until(lambda: enforced(plugin) == "driver")
    shutil.rmtree(cgroup / "container")
    (cgroup / "again").mkdir()
    until(lambda: limit(cgroup / "again") == 30 * GIB)


def test_limits_outlive_restarts_of_driver_and_plugin(
    rig: Rig, server: Server, cgroup: Path
) -> None:
    rig.machine.set(0, limits=1)
    plugin = start(rig, server)
    until(lambda: enforced(plugin) == "driver")
    session = plugin.node.snapshot()[0].session
    rig.machine.restart_driver()  # it forgets what it kept
    until(lambda: plugin.node.snapshot()[0].session > session)
    until(lambda: limit(cgroup / "container") == 30 * GIB)
    rig.stop()
    plugin = rig.ready()
    until(lambda: enforced(plugin) == "driver")
    rig.kubelet.finish(next(iter(rig.kubelet.pods.values())))
    shutil.rmtree(cgroup)
    until(lambda: not plugin.node.snapshot()[2])


@pytest.mark.parametrize("limits", [0, 3])
def test_a_driver_that_cannot_or_may_not_is_not_said_to(
    rig: Rig, server: Server, cgroup: Path, limits: int
) -> None:
    assert cgroup.is_dir()
    rig.machine.set(0, limits=limits)
    plugin = start(rig, server)
    until(lambda: enforced(plugin) == "none")
    (grant,) = plugin.node.snapshot()[2]
    folder = rig.config.arbiter_dir / rig.machine.gpus[0]["uuid"] / "grants"
    page = Page(folder / grant.slot / arbiter.POD)
    assert enforced(plugin) == "runtime"
    page.close()


@pytest.fixture
def daemon(rig: Rig) -> Iterator[socket.socket]:
    """An MPS control daemon's socket."""
    pipes = rig.folder / "mps"
    pipes.mkdir()
    rig.settings["mps_pipe_dir"] = pipes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(pipes / mps.CONTROL))
        listening.listen()
        yield listening


def test_a_container_becomes_a_client_while_the_daemon_answers(
    rig: Rig, server: Server, daemon: socket.socket
) -> None:
    plugin = start(rig, server)
    until(lambda: enforced(plugin) == "mps")
    rig.stop()
    plugin = rig.ready()  # what its container was told is remembered
    until(lambda: enforced(plugin) == "mps")
    rig.stop()
    daemon.close()
    plugin = rig.ready()
    until(lambda: enforced(plugin) == "none")
    given = rig.kubelet.admit("s-2", {GPU0: 10}).responses[GPU0]
    assert not [name for name in given.envs if name.startswith("CUDA")]


def test_an_mps_client_is_told_its_part(rig: Rig, server: Server, daemon: socket.socket) -> None:
    assert daemon.getsockname()
    start(rig, server)
    (held,) = rig.kubelet.pods.values()
    envs = held.responses[GPU0].envs
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{rig.machine.gpus[0]['uuid']}=30720M"
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "38"
