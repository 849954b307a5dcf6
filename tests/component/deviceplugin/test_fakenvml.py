"""The fake NVML answers as NVML is documented to, seen through the real nvidia-ml-py."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fakenvml import machine as fake

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


def test_memory_limits_are_there_where_the_driver_has_them(machine: fake.Machine) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=b"/x", softLimit=1, hardLimit=2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle(), limits)
    machine.set(0, limits=1)
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle(), limits)
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/x")
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle(), found)
    assert (found.softLimit, found.hardLimit) == (1, 2)
