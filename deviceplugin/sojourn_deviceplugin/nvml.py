"""NVML as typed values: a thin layer over nvidia-ml-py, which `gpm` and `memorylimits` import, too.

Calls block as long as the driver likes (they release the interpreter's lock), so only threads of
their own call this. One GPU that fails spoils nothing of the others. No judgement, no state beyond
whether the library is initialised.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pynvml

from sojourn_deviceplugin import gpm, memorylimits
from sojourn_deviceplugin.facts import (
    RECOVERY_UNKNOWN,
    GpuFacts,
    MigInstance,
    MigProfile,
    NodeFacts,
    ProcessUse,
    Xid,
)

Handle = Any
T = TypeVar("T")

REMEDY: Final = "look at the driver (nvidia-smi) and at devicePlugin.runtimeClassName of the chart"
"""Of NVML as a whole."""
LINKS: Final = 18
"""NVLinks per GPU at most (Blackwell)."""
PROFILES: Final = range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
_ABSENT: Final = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
)
"""What a card, a driver or our rights may lack without being broken."""


class NvmlError(Exception):
    """NVML as a whole does not work; the text says what the library answered."""


@contextmanager
def _as(what: str) -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        raise NvmlError(f"{what}: {error}") from error


def _or(otherwise: T, call: Callable[..., T], *arguments: object) -> T:
    """The answer, or `otherwise` where the card or the driver has no such thing."""
    try:
        return call(*arguments)
    except _ABSENT:
        return otherwise


class Nvml:
    """The library, initialised when needed and again after a failure.

    Names of processes and their parts of the load mean something only with the host's pids.
    """

    def __init__(self, *, process_names: bool = False, process_loads: bool = False) -> None:
        self._names = process_names
        self._loads = process_loads
        self._gpm = gpm.Gpm()
        self._open = False
        self._session = 0

    def read(self, known: Iterable[str]) -> NodeFacts:
        """All GPUs now. `known` are UUIDs to ask for even if no index leads to them any more."""
        try:
            self._initialise()
            gpus = tuple(self._gpus(known))
            # Asked last: where NVML itself failed on the way, no GPU is to blame.
            with _as("driver version"):
                driver = pynvml.nvmlSystemGetDriverVersion()
            return NodeFacts(gpus=gpus, driver=driver, session=self._session)
        except NvmlError as error:
            self.close()
            return NodeFacts(error=f"{error}; {REMEDY}", session=self._session)

    def _initialise(self) -> None:
        if not self._open:
            with _as("NVML cannot be initialised (is the driver loaded, the library mounted?)"):
                pynvml.nvmlInit()
            self._open = True
            self._session += 1

    def close(self) -> None:
        """Let go of the library; the next read initialises it again."""
        if self._open:
            self._open = False
            self._gpm.close()
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # the driver went away first, there is nothing left to let go of

    def _gpus(self, known: Iterable[str]) -> Iterator[GpuFacts]:
        with _as("number of GPUs"):
            count = pynvml.nvmlDeviceGetCount()
        seen = set()
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
            except pynvml.NVMLError_Uninitialized as error:
                raise NvmlError(f"GPU {index}: {error}") from error
            except pynvml.NVMLError:
                continue  # lost; it is asked for by its UUID below
            seen.add(uuid)
            yield self._gpu(uuid, handle)
        for uuid in known:
            if uuid not in seen and (lost := self._lost(uuid)) is not None:
                yield lost

    @staticmethod
    def _lost(uuid: str) -> GpuFacts | None:
        try:
            pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError_NotFound:
            return None
        except pynvml.NVMLError as error:
            return GpuFacts(uuid=uuid, error=f"NVML: {error}")
        return GpuFacts(uuid=uuid, error="NVML: no index leads to this GPU")

    def _gpu(self, uuid: str, handle: Handle) -> GpuFacts:
        try:
            return self._facts(uuid, handle)
        except pynvml.NVMLError_Uninitialized as error:
            raise NvmlError(f"{uuid}: {error}") from error
        except pynvml.NVMLError as error:
            return GpuFacts(uuid=uuid, error=f"NVML: {error}")

    def _facts(self, uuid: str, handle: Handle) -> GpuFacts:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        mig = _or([0, 0], pynvml.nvmlDeviceGetMigMode, handle)[0] == 1
        busy = _or(None, pynvml.nvmlDeviceGetUtilizationRates, handle)
        sm, bandwidth = gpm.UNKNOWN if mig else self._gpm.read(uuid, handle)
        _, _, pending, failed = _or((0, 0, 0, 0), pynvml.nvmlDeviceGetRemappedRows, handle)
        return GpuFacts(
            uuid=uuid,
            model=pynvml.nvmlDeviceGetName(handle),
            minor=pynvml.nvmlDeviceGetMinorNumber(handle),
            numa=_or(None, pynvml.nvmlDeviceGetNumaNodeId, handle),
            total_bytes=memory.total,
            reserved_bytes=memory.reserved,
            used_bytes=memory.used,
            busy_percent=None if busy is None else busy.gpu,
            memory_busy_percent=None if busy is None else busy.memory,
            sm_percent=sm,
            bandwidth_percent=bandwidth,
            processes=tuple(self._processes(handle)),
            links=tuple(_links(handle)),
            recovery=_recovery(handle),
            ecc_errors=_ecc_errors(handle),
            remap_pending=bool(pending),
            remap_failed=bool(failed),
            memory_limits=memorylimits.supported(handle),
            mig=mig,
            instances=tuple(_instances(handle)) if mig else (),
            profiles=tuple(_profiles(handle)) if mig else (),
        )

    def _processes(self, handle: Handle) -> Iterator[ProcessUse]:
        none: list[Any] = []
        loads = _process_loads(handle) if self._loads else {}
        for process in _or(none, pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle):
            name = _process_name(process.pid) if self._names else ""
            yield ProcessUse(
                pid=process.pid,
                bytes=process.usedGpuMemory or 0,
                name=name,
                sm_percent=loads.get(process.pid, 0),
            )


def _process_loads(handle: Handle) -> dict[int, int]:
    """By process id: how much of the SMs' time it had in the last second; who had none is absent.

    The driver stamps its samples with the time of day, in microseconds.
    """
    since = int((time.time() - 1) * 1e6)
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except (*_ABSENT, pynvml.NVMLError_NotFound):
        return {}
    return {sample.pid: int(sample.smUtil) for sample in samples if sample.timeStamp >= since}


def _process_name(pid: int) -> str:
    try:
        return str(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:
        return ""  # it has ended meanwhile, or is not ours to see


def _recovery(handle: Handle) -> int:
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = _or(None, pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return RECOVERY_UNKNOWN
    return int(values[0].value.uiVal)


def _ecc_errors(handle: Handle) -> int | None:
    kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    count: int | None = _or(None, pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)
    return count


def _links(handle: Handle) -> Iterator[str]:
    """UUIDs at the other ends of the active NVLinks; a switch in between ends the trail."""
    seen = set()
    for link in range(LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            bus = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
            peer = pynvml.nvmlDeviceGetHandleByPciBusId(bus)
            uuid = pynvml.nvmlDeviceGetUUID(peer)
        except _ABSENT:
            return
        except pynvml.NVMLError:
            continue
        if uuid not in seen:
            seen.add(uuid)
            yield uuid


def _instances(handle: Handle) -> Iterator[MigInstance]:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:
            continue
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
        name = pynvml.nvmlDeviceGetName(device)
        yield MigInstance(
            uuid=pynvml.nvmlDeviceGetUUID(device),
            profile=name.rpartition("MIG ")[2],
            bytes=memory.total,
        )


def _profiles(handle: Handle) -> Iterator[MigProfile]:
    for number in PROFILES:
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
            remaining = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, info.id)
        except (*_ABSENT, pynvml.NVMLError_InvalidArgument):
            continue
        name = info.name
        yield MigProfile(
            name=(name.decode() if isinstance(name, bytes) else name).rpartition("MIG ")[2],
            memory_slices=info.sliceCount,
            remaining=remaining,
            ideal=info.instanceCount,
        )


class Events:
    """XIDs of all GPUs that can tell them, one wait at a time; for a thread of its own."""

    def __init__(self) -> None:
        self._set: Any = None

    def wait(self, *, milliseconds: int) -> Xid | None:
        """The next XID, or None after the time; raises NvmlError when the set has to be renewed."""
        with _as("events"):
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, milliseconds)
            except pynvml.NVMLError_Timeout:
                return None
            uuid = pynvml.nvmlDeviceGetUUID(data.device)
        return Xid(uuid=uuid, number=int(data.eventData))

    def open(self) -> None:
        """Hear everything that happens from now on."""
        with _as("events"):
            self._register()

    def _register(self) -> None:
        events = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, events
                )
            except pynvml.NVMLError:
                continue  # lost, or too old to tell: its other signs of ill health remain
        self._set = events
