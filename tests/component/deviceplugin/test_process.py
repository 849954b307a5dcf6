"""The plugin as a process of its own: killed, signalled, measured, asked with --check."""

import json
import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from deviceprocess import Process
from devicerig import until
from fakekubelet import Kubelet, running
from fakenvml import machine as fake
from sojourn_api import names
from sojourn_api.arbiter_page import Page

GPU0 = names.gpu_resource(0)
RESIDENT_MIB = 48
"""Of what the chart asks for the container, without the publisher."""


@pytest.fixture
def process(library: Path, short: Path) -> Iterator[Process]:
    with running(Kubelet(short)) as kubelet:
        process = Process(short, library, kubelet)
        yield process
        if process.running is not None:
            process.kill()


def test_a_killed_plugin_comes_back_with_ids_grants_and_pages(process: Process) -> None:
    kubelet = process.kubelet
    process.start()
    until(lambda: kubelet.allocatable(GPU0) == 79)
    pod = kubelet.admit("s-1", {GPU0: 30})
    own = Path(pod.responses[GPU0].mounts[1].host_path)
    page = Page(own)
    for _ in range(5):
        process.kill()
        until(lambda: kubelet.allocatable(GPU0) == 0)  # the kubelet has seen the stream end
        process.start()
        until(lambda: kubelet.allocatable(GPU0) == 79)
        assert own.exists()
        assert "sojourn_gpu_slices_free" in process.get("/metrics")
        until(
            lambda: (
                'slices_free{gpu="0",uuid="' + fake.uuid(0) + '"} 49.0' in process.get("/metrics")
            )
        )
    other = kubelet.admit("s-2", {GPU0: 10})
    assert not other.devices[GPU0] & pod.devices[GPU0]
    assert other.responses[GPU0].mounts[1].host_path != str(own)
    page.close()


def test_plugin_and_kubelet_killed_together_lose_no_grant(process: Process) -> None:
    kubelet = process.kubelet
    process.start()
    until(lambda: kubelet.allocatable(GPU0) == 79)
    pods = [kubelet.admit(f"s-{n}", {GPU0: 10}) for n in range(3)]
    kubelet.stop()
    process.kill()
    process.start()
    kubelet.start()
    until(lambda: kubelet.allocatable(GPU0) == 79)
    until(lambda: "} 49.0" in process.get("/metrics"))
    asked = kubelet.listings
    until(lambda: kubelet.listings >= asked + 2)
    kubelet.finish(pods[0])
    until(lambda: "} 59.0" in process.get("/metrics"), seconds=15)
    until(lambda: not Path(pods[0].responses[GPU0].mounts[1].host_path).exists())
    assert Path(pods[1].responses[GPU0].mounts[1].host_path).exists()


def test_sigterm_ends_it_in_good_order(process: Process) -> None:
    process.start()
    until(lambda: process.kubelet.allocatable(GPU0) == 79)
    assert process.kill(signal.SIGTERM) == 0


def test_readiness_waits_for_the_kubelet(process: Process) -> None:
    process.kubelet.refuse = "not yet"
    process.start()
    assert process.get(names.PATH_HEALTH) == "ok\n"
    with pytest.raises(urllib.error.HTTPError) as refused:
        process.get(names.PATH_READY)
    assert refused.value.code == 503
    refused.value.close()
    process.kubelet.refuse = ""
    until(lambda: process.kubelet.allocatable(GPU0) == 79)
    until(lambda: process.get(names.PATH_READY) == "ok\n")


def test_it_is_alive_and_says_why_without_nvml(process: Process) -> None:
    process.machine.error = "DRIVER_NOT_LOADED"
    process.machine.write()
    process.start()
    assert process.get(names.PATH_HEALTH) == "ok\n"
    report = process.run("--check")
    assert report.returncode == 0
    assert "nothing: NVML cannot be initialised" in report.stdout


def test_check_prints_what_would_be_offered_and_why_not(process: Process) -> None:
    process.machine.gpus += [fake.gpu(1, name="NVIDIA Nonesuch"), fake.gpu(2, remap_failure=1)]
    part = {"id": 1, "uuid": "MIG-1", "profile": "1g", "start": 0}
    process.machine.gpus += [fake.gpu(3, mig={"mode": 1, "instances": [part]})]
    process.machine.write()
    lines = process.run("--check").stdout.splitlines()
    assert lines[0] == "driver 580.95.05"
    assert lines[1].startswith("sojourn.dev/gpu-0: 79 x 1073741824 bytes of NVIDIA A100")
    assert "no compute share" in lines[2]
    assert "unhealthy, RowRemapFailed" in lines[3]
    assert "gpu-3: 0 x" in lines[4]
    assert lines[5] == "sojourn.dev/mig-1g.10gb: 1 instances, 1 on healthy GPUs (MIG-1)"
    assert not (process.folder / "state").exists()  # a look changes nothing


def test_wrong_settings_end_it_with_the_name_of_the_setting(process: Process) -> None:
    process.settings["sliceBytes"] = "1Mi"
    done = process.run()
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "sliceBytes" in json.loads(line)["error"]


def test_a_changed_settings_file_is_taken_over_and_a_wrong_one_is_not(process: Process) -> None:
    process.start()
    until(lambda: process.kubelet.capacity(GPU0) == 79)
    process.settings["sliceBytes"] = "1Mi"
    process.command()
    until(lambda: "new settings refused" in process.log())
    assert process.kubelet.allocatable(GPU0) == 79
    process.settings["sliceBytes"] = "4Gi"
    process.command()
    until(lambda: process.kubelet.capacity(GPU0) == 19)
    assert process.kill(signal.SIGTERM) == 0


def test_an_error_that_ends_it_leaves_nothing_that_serves_the_kubelet(process: Process) -> None:
    """A process that lives on with its loop ended would offer for ever what was true before."""
    process.start()
    until(lambda: process.kubelet.allocatable(GPU0) == 79)
    state = process.folder / "state"
    state.rename(process.folder / "aside")
    state.touch()
    process.machine.gpus.append(fake.gpu(1))  # its ordinal cannot be written down
    process.machine.write()
    assert process.running is not None
    assert process.running.wait(20) == 2
    assert "gpus.json: cannot be written" in process.log()
    until(lambda: process.kubelet.allocatable(GPU0) == 0)
    process.running = None


@pytest.mark.timeout(180)
def test_memory_stays_flat_over_thousands_of_allocations(process: Process) -> None:
    process.machine.gpus = [fake.gpu(n, name=fake.H200, mib=143771) for n in range(8)]
    process.machine.write()
    kubelet = process.kubelet
    process.start()
    resources = [names.gpu_resource(n) for n in range(8)]
    until(lambda: all(kubelet.allocatable(resource) == 139 for resource in resources))
    until(lambda: process.resident_mib() < RESIDENT_MIB)  # the start itself takes more
    sizes = []
    for n in range(3_000):
        pod = kubelet.admit(f"s-{n}", {resources[n % 8]: 10})
        kubelet.finish(pod)
        if n % 300 == 299:
            sizes.append(process.resident_mib())
    assert max(sizes) < RESIDENT_MIB, sizes
    assert sizes[-1] - sizes[1] < 2, sizes
