"""GPM: how full a GPU's SMs and its memory bus were between two looks (NVML, Hopper and later).

A figure is the difference of two samples, so one of each GPU is kept from look to look. What a GPU
cannot tell is None. Only the thread that reads NVML comes here, by way of `nvml`.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, Final

import pynvml

Handle = Any
Sample = Any
Flow = tuple[int | None, int | None]
"""SMs at work, of all, and memory bandwidth used, of all that there is; both in percent."""

UNKNOWN: Final[Flow] = (None, None)
METRICS: Final = (pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL)


APART_SECONDS: Final = 0.1
"""The driver refreshes its counters no more often."""


@dataclass(frozen=True, slots=True)
class _Look:
    sample: Sample
    at: float
    flow: Flow


class Gpm:
    """The samples of before, by UUID."""

    def __init__(self) -> None:
        self._kept: dict[str, _Look] = {}

    def read(self, uuid: str, handle: Handle) -> Flow:
        """Since the look before; unknown at the first, and without GPM. A hasty look sees the same.

        Whatever goes wrong here is no sign of ill health: a GPU that is lost fails other calls too.
        """
        try:
            return self._look(uuid, handle)
        except pynvml.NVMLError:
            self._forget(uuid)
            return UNKNOWN

    def close(self) -> None:
        """Give back all samples, while the library is still there to take them."""
        for uuid in tuple(self._kept):
            self._forget(uuid)

    def _look(self, uuid: str, handle: Handle) -> Flow:
        old, now = self._kept.get(uuid), time.monotonic()
        if old is not None and now - old.at < APART_SECONDS:
            return old.flow
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return UNKNOWN
        new = _sample(handle)
        try:
            flow = UNKNOWN if old is None else _between(old.sample, new)
        except pynvml.NVMLError:
            pynvml.nvmlGpmSampleFree(new)
            raise
        self._kept[uuid] = _Look(new, now, flow)
        if old is not None:
            pynvml.nvmlGpmSampleFree(old.sample)
        return flow

    def _forget(self, uuid: str) -> None:
        look = self._kept.pop(uuid, None)
        if look is None:
            return
        try:
            pynvml.nvmlGpmSampleFree(look.sample)
        except pynvml.NVMLError:
            return  # the driver went away first


def _sample(handle: Handle) -> Sample:
    new = pynvml.nvmlGpmSampleAlloc()
    try:
        return pynvml.nvmlGpmSampleGet(handle, new)
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(new)
        raise


def _between(old: Sample, new: Sample) -> Flow:
    wanted = pynvml.c_nvmlGpmMetricsGet_t(
        version=pynvml.NVML_GPM_METRICS_GET_VERSION,
        numMetrics=len(METRICS),
        sample1=old,
        sample2=new,
    )
    for place, metric in enumerate(METRICS):
        wanted.metrics[place].metricId = metric
    pynvml.nvmlGpmMetricsGet(wanted)
    sm, dram = (_percent(wanted.metrics[place]) for place in range(len(METRICS)))
    return sm, dram


def _percent(metric: Any) -> int | None:
    """Each metric fails or not by itself; two samples without time between them give no number."""
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not math.isfinite(metric.value):
        return None
    value: float = metric.value
    return min(100, max(0, round(value)))
