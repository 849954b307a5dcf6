"""Bandwidth and SM activity, as the plugin reads them from NVML."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devicerig import Rig, until
from fakenvml import machine as fake
from sojourn_api import names
from sojourn_deviceplugin.facts import GpuFacts
from sojourn_deviceplugin.nvml import Nvml

GPU0 = names.gpu_resource(0)
SAMPLES = 64
"""As many as the fake library gives out."""


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fake.Machine:
    assert library.exists()
    machine = fake.Machine(tmp_path / "scenario.json", gpus=[fake.gpu(0, utilization=[70, 30])])
    machine.write()
    monkeypatch.setenv("FAKE_NVML_SCENARIO", str(machine.path))
    return machine


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    nvml = Nvml()
    yield nvml
    nvml.close()


def read(nvml: Nvml, until_: Callable[[GpuFacts], object] = lambda _: True) -> GpuFacts:
    """The GPU's facts as soon as they are so; two looks need some time between them."""
    found = nvml.read(()).gpus[0]

    def so() -> object:
        nonlocal found
        found = nvml.read(()).gpus[0]
        return until_(found)

    until(so)
    return found


def test_a_gpu_with_gpm_tells_how_full_it_was_since_the_last_look(
    machine: fake.Machine, nvml: Nvml
) -> None:
    machine.set(0, gpm=[40.4, 25.6])
    first = nvml.read(()).gpus[0]
    assert (first.sm_percent, first.bandwidth_percent) == (None, None)
    found = read(nvml, lambda gpu: gpu.sm_percent is not None)
    assert (found.sm_percent, found.bandwidth_percent) == (40, 26)
    assert (found.busy_percent, found.memory_busy_percent) == (70, 30)


def test_a_gpu_without_gpm_leaves_it_unknown(machine: fake.Machine, nvml: Nvml) -> None:
    assert machine.gpus
    for _ in range(3):
        found = nvml.read(()).gpus[0]
        assert (found.sm_percent, found.bandwidth_percent) == (None, None)
        assert found.busy_percent == 70
        assert not found.error


def test_under_mig_the_whole_gpu_has_no_figures(machine: fake.Machine, nvml: Nvml) -> None:
    machine.set(0, gpm=[40, 25], mig={"mode": 1, "instances": []})
    found = read(nvml)
    assert (found.sm_percent, found.busy_percent, found.error) == (None, None, "")


def test_samples_are_given_back(machine: fake.Machine, nvml: Nvml) -> None:
    machine.set(0, gpm=[40, 25])
    for _ in range(2 * SAMPLES):
        nvml.read(())
    assert read(nvml, lambda gpu: gpu.sm_percent is not None).sm_percent == 40
    for _ in range(2 * SAMPLES):
        nvml.close()
        nvml.read(())
    assert read(nvml, lambda gpu: gpu.sm_percent is not None).sm_percent == 40


def test_a_restarted_driver_is_sampled_anew(machine: fake.Machine, nvml: Nvml) -> None:
    machine.set(0, gpm=[40, 25])
    read(nvml, lambda gpu: gpu.sm_percent is not None)
    machine.restart_driver()
    assert nvml.read(()).error
    assert nvml.read(()).gpus[0].sm_percent is None
    assert read(nvml, lambda gpu: gpu.sm_percent is not None).sm_percent == 40


def test_a_gpm_that_hangs_holds_up_no_allocation(rig: Rig) -> None:
    rig.machine.gpus = [fake.gpu(0, gpm=[40, 25])]
    plugin = rig.ready()
    value = plugin.metrics.registry.get_sample_value
    key = {"gpu": "0", "uuid": fake.uuid(0)}
    until(lambda: value("sojourn_gpu_bandwidth_percent", key) == 25)
    assert value("sojourn_gpu_sm_percent", key) == 40
    rig.machine.delays = {"nvmlGpmSampleGet": 60_000}
    rig.machine.set(0, gpm=[90, 90])
    for number in range(20):
        rig.kubelet.admit(f"s-{number}", {GPU0: 1})
    assert value("sojourn_gpu_sm_percent", key) == 40  # and the reader still waits
    assert rig.healthy(0)
