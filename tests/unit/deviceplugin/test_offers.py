"""What a container is given with its slices: device files or names of CDI, and nothing twice."""

from dataclasses import replace
from pathlib import Path

import pytest
from sojourn_deviceplugin import offering
from sojourn_deviceplugin.config import Config, DeviceList, DeviceNodes
from sojourn_deviceplugin.facts import GpuFacts
from sojourn_deviceplugin.health import Verdict
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer, answer
from sojourn_deviceplugin.registry import Known

GIB = 1024**3
GPU = Known("GPU-1", 0, "A100", memory_bytes=80 * GIB, slice_bytes=GIB, slices=79, minor=3)
GRANT = Grant(0, frozenset(f"d-{n}" for n in range(12)), slot="1", made_ns=0)
NODES = ("/dev/nvidia3", "/dev/nvidiactl")
OFFER = Offer(gpu=GPU, verdict=Verdict(healthy=True), nodes=NODES)


def test_by_default_a_container_gets_the_device_files_of_its_gpu_to_read_and_write() -> None:
    found = answer(OFFER, GRANT, Config())
    assert [
        (device.container_path, device.host_path, device.permissions) for device in found.devices
    ] == [(node, node, "rw") for node in NODES]
    assert not found.cdi_devices


def test_with_cdi_it_gets_names_and_no_files() -> None:
    found = answer(OFFER, GRANT, replace(Config(), device_list_strategy=DeviceList.CDI))
    assert not found.devices
    assert [device.name for device in found.cdi_devices] == ["nvidia.com/gpu=GPU-1"]


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def test_the_files_are_those_of_its_minor_number_and_the_shared_ones_that_are_there(
    dev: Path,
) -> None:
    """The minor number is not NVML's index: a lost GPU shifts the one and not the other."""
    found = offering.device_files(GpuFacts(uuid="GPU-1", minor=3), Config(), dev=dev)
    assert found == tuple(str(dev / name) for name in ("nvidia3", "nvidiactl", "nvidia-uvm"))


def test_a_simulation_hands_out_no_files(dev: Path) -> None:
    config = Config(device_nodes=DeviceNodes.NONE)
    assert offering.device_files(GpuFacts(uuid="GPU-1", minor=3), config, dev=dev) == ()
