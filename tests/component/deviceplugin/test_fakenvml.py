"""The fake NVML answers as NVML is documented to, seen through the real nvidia-ml-py."""

import ctypes
import inspect
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
import sojourn_deviceplugin
from fakenvml import machine as fake
from sojourn_deviceplugin.nvml import Nvml

PLUGIN = Path(sojourn_deviceplugin.__file__).parent
OLDER = {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetGpuInstanceProfileInfo"}
"""Of versions that the plugin does not ask for."""
MIB = 2**20
INSTANCE = {"id": 3, "uuid": "MIG-3", "profile": "3g", "start": 4}


@pytest.fixture
def machine(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[fake.Machine]:
    assert library.exists()
    machine = fake.Machine(tmp_path / "scenario.json", gpus=[fake.gpu(0), fake.gpu(1)])
    machine.write()
    monkeypatch.setenv("FAKE_NVML_SCENARIO", str(machine.path))
    pynvml.nvmlInit()
    yield machine
    pynvml.nvmlShutdown()


def called() -> set[str]:
    """The library's functions that the plugin's calls of nvidia-ml-py lead to."""
    sources = "".join(path.read_text() for path in PLUGIN.glob("*.py"))
    calls = {getattr(pynvml, name) for name in re.findall(r"pynvml\.(nvml[A-Z]\w+)", sources)}
    bodies = "".join(inspect.getsource(call) for call in calls if inspect.isfunction(call))
    return set(re.findall(r"_nvmlGetFunctionPointer\(['\"](\w+)['\"]\)", bodies))


def test_all_that_the_plugin_calls_is_there(library: Path) -> None:
    loaded = ctypes.CDLL(str(library))
    symbols = called()
    assert "nvmlDeviceGetMemoryInfo_v2" in symbols
    assert {symbol for symbol in symbols if not hasattr(loaded, symbol)} == OLDER


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def test_memory_v2_has_the_drivers_part_apart(machine: fake.Machine) -> None:
    machine.set(0, used_mib=1000, reserved_mib=500)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2)
    assert (memory.total, memory.reserved, memory.used) == (81920 * MIB, 500 * MIB, 1000 * MIB)
    assert memory.free == memory.total - memory.reserved - memory.used


def test_a_wrong_structure_version_is_refused(machine: fake.Machine) -> None:
    assert machine.gpus
    with pytest.raises(pynvml.NVMLError) as refused:
        pynvml.nvmlDeviceGetMemoryInfo(handle(), version=1)
    assert refused.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_processes_come_in_two_calls(machine: fake.Machine) -> None:
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle()) == []
    machine.set(0, processes=[{"pid": n, "mib": n} for n in range(1, 40)])
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert [(p.pid, p.usedGpuMemory) for p in found] == [(n, n * MIB) for n in range(1, 40)]


def test_a_gpu_is_found_by_uuid_and_bus_and_unknown_ones_are_not(machine: fake.Machine) -> None:
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(fake.uuid(1))
    bus = pynvml.nvmlDeviceGetPciInfo(by_uuid).busId
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) == fake.uuid(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-nonesuch")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        handle(len(machine.gpus))


def test_a_lost_gpu_is_counted_and_says_so(machine: fake.Machine) -> None:
    machine.set(1, error="GPU_IS_LOST")
    assert pynvml.nvmlDeviceGetCount() == 2
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        handle(1)
    assert pynvml.nvmlDeviceGetUUID(handle(0)) == fake.uuid(0)


def test_a_restarted_driver_wants_to_be_initialised_again(machine: fake.Machine) -> None:
    machine.restart_driver()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2


def test_events_are_told_once_to_those_who_registered_before(machine: fake.Machine) -> None:
    machine.xid(0, 31)  # before the set was made
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle(0), pynvml.nvmlEventTypeXidCriticalError, events)
    machine.xid(1, 48)  # of a GPU that is not registered
    machine.xid(0, 79)
    event = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    begin = time.monotonic()
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 100)
    assert time.monotonic() - begin >= 0.1
    pynvml.nvmlEventSetFree(events)


def test_what_a_card_has_not_is_not_supported(machine: fake.Machine) -> None:
    assert pynvml.nvmlDeviceGetMigMode(handle()) == [0, 0]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkState(handle(), 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNumaNodeId(handle())
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(handle())
    machine.set(0, mig={"mode": 1, "instances": []})
    with pytest.raises(pynvml.NVMLError_NotSupported):  # utilization is undefined under MIG
        pynvml.nvmlDeviceGetUtilizationRates(handle())


def test_a_mig_device_answers_for_itself(machine: fake.Machine) -> None:
    machine.set(0, mig={"mode": 1, "instances": [INSTANCE]}, processes=[{"pid": 1, "mib": 7}])
    part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 0)
    assert pynvml.nvmlDeviceGetUUID(part) == "MIG-3"
    assert pynvml.nvmlDeviceGetGpuInstanceId(part) == 3
    memory = pynvml.nvmlDeviceGetMemoryInfo(part, version=pynvml.nvmlMemory_v2)
    assert (memory.total, memory.used) == (81920 * MIB // 2, 0)  # half of it; none of its processes
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 1)


def sample(device: Any) -> Any:
    return pynvml.nvmlGpmSampleGet(device, pynvml.nvmlGpmSampleAlloc())


def metrics(first: Any, second: Any, *numbers: int) -> Any:
    wanted = pynvml.c_nvmlGpmMetricsGet_t(
        version=pynvml.NVML_GPM_METRICS_GET_VERSION,
        numMetrics=len(numbers),
        sample1=first,
        sample2=second,
    )
    for place, number in enumerate(numbers):
        wanted.metrics[place].metricId = number
    return pynvml.nvmlGpmMetricsGet(wanted).metrics


def test_gpm_is_the_difference_of_two_samples_of_one_gpu(machine: fake.Machine) -> None:
    machine.set(0, gpm=[40.5, 25])
    machine.set(1, gpm=[1, 1])
    assert pynvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice
    first, second = sample(handle()), sample(handle())
    sm, dram = pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
    assert math.isnan(metrics(first, second, sm)[0].value)  # taken within one refresh of 100 ms
    begin = time.monotonic()
    while math.isnan((found := metrics(first, second, sm, dram))[0].value):
        assert time.monotonic() - begin < 5
        pynvml.nvmlGpmSampleGet(handle(), second)
    assert time.monotonic() - begin >= 0.09
    assert [found[n].value for n in range(2)] == [40.5, 25]
    unknown = metrics(first, second, pynvml.NVML_GPM_METRIC_FP64_UTIL)[0]
    assert unknown.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
    other = sample(handle(1))
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        metrics(first, other, sm)
    for taken in (first, second, other):
        pynvml.nvmlGpmSampleFree(taken)


def test_a_card_without_gpm_says_so(machine: fake.Machine) -> None:
    assert not pynvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice
    buffer = pynvml.nvmlGpmSampleAlloc()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlGpmSampleGet(handle(), buffer)
    pynvml.nvmlGpmSampleFree(buffer)
    machine.set(0, gpm=[1, 1], mig={"mode": 1, "instances": []})
    assert not pynvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice


@pytest.mark.parametrize(
    ("taken", "remaining"),
    [((), 2), ((4,), 1), ((0, 4), 0)],
)
def test_the_remaining_capacity_follows_the_placements(
    machine: fake.Machine, taken: tuple[int, ...], remaining: int
) -> None:
    parts = [INSTANCE | {"id": start + 1, "start": start} for start in taken]
    machine.set(0, mig={"mode": 1, "instances": parts})
    half = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle(), 2)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle(), half.id) == remaining


def test_a_slow_call_blocks_its_caller_until_the_scenario_says_otherwise(
    machine: fake.Machine,
) -> None:
    machine.delays = {"nvmlDeviceGetName": 200}
    machine.write()
    begin = time.monotonic()
    pynvml.nvmlDeviceGetName(handle())
    assert time.monotonic() - begin >= 0.2


def limit(cgroup: Path, hard: int, *, soft: int = 0) -> None:
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(
        nameSpace=str(cgroup).encode(), softLimit=soft, hardLimit=hard
    )
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle(), wanted)


def limited(cgroup: Path) -> tuple[int, int, int]:
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(cgroup).encode())
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle(), found)
    return (found.softLimit, found.hardLimit, found.currentUsed)


UNLIMITED = (0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX, 0)


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    pod = tmp_path / "pod"
    (pod / "container").mkdir(parents=True)
    return pod


def test_an_older_driver_has_no_memory_limits(machine: fake.Machine, pod: Path) -> None:
    assert machine.gpus
    with pytest.raises(pynvml.NVMLError_NotSupported):
        limit(pod, 2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        limited(pod)


def test_memory_limits_are_kept_by_gpu_and_cgroup(machine: fake.Machine, pod: Path) -> None:
    machine.set(0, limits=1, processes=[{"pid": 1, "mib": 3, "cgroup": str(pod / "container")}])
    used = 3 * MIB
    assert limited(pod) == (*UNLIMITED[:2], used)
    limit(pod, 2, soft=1)
    assert limited(pod) == (1, 2, used)
    assert limited(pod.parent) == (*UNLIMITED[:2], used)
    limit(pod, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
    assert limited(pod) == (*UNLIMITED[:2], used)


@pytest.mark.parametrize(("kept", "read"), [(1, (0, 2, 0)), (2, UNLIMITED)])
def test_a_container_reads_its_pods_limit_only_where_the_driver_keeps_it(
    machine: fake.Machine, pod: Path, kept: int, read: tuple[int, int, int]
) -> None:
    machine.set(0, limits=kept)
    limit(pod, 2)
    assert limited(pod / "container") == read


def test_limits_need_a_cgroup_and_the_right_and_no_mig(machine: fake.Machine, pod: Path) -> None:
    machine.set(0, limits=1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        limit(pod / "nonesuch", 2)
    with pytest.raises(pynvml.NVMLError_NotFound):
        limited(pod / "nonesuch")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        limit(pod, 2, soft=3)
    machine.set(0, limits=3)
    with pytest.raises(pynvml.NVMLError_NoPermission):
        limit(pod, 2)
    machine.set(0, limits=1, mig={"mode": 1, "instances": []})
    with pytest.raises(pynvml.NVMLError_NotSupported):
        limit(pod, 2)


def test_a_limit_ends_with_its_cgroup_and_with_the_driver(machine: fake.Machine, pod: Path) -> None:
    machine.set(0, limits=1)
    limit(pod / "container", 2)
    (pod / "container").rmdir()
    assert limited(pod) == UNLIMITED
    (pod / "container").mkdir()
    assert limited(pod / "container") == UNLIMITED
    limit(pod, 5)
    machine.restart_driver()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        limited(pod)
    pynvml.nvmlInit()
    assert limited(pod) == UNLIMITED


def test_nvml_that_fails_in_the_middle_of_a_look_is_no_gpus_fault(
    machine: fake.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_of = pynvml.nvmlDeviceGetName

    def breaks_after_the_first(handle: Any) -> str:
        machine.error = "UNKNOWN"
        machine.write()
        return str(name_of(handle))

    nvml = Nvml()
    assert [gpu.error for gpu in nvml.read([]).gpus] == ["", ""]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", breaks_after_the_first)
    facts = nvml.read([fake.uuid(0), fake.uuid(1)])
    machine.error = ""
    machine.write()
    assert facts.gpus == ()
    assert "Unknown Error" in facts.error
