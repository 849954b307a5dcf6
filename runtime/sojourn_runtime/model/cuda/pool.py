"""The KV pool on a device, as bytes: copies to and from pinned host memory that nobody waits for.

They are queued before the pass that needs them, on its stream, so the order is the device's own;
whoever touches the host side waits with `settle`.
"""

import logging

import numpy as np
import numpy.typing as npt
import torch

from sojourn_runtime.model.eager import BlockBytes
from sojourn_runtime.model.pages import pages

log = logging.getLogger(__name__)


class DevicePool(BlockBytes):
    """Implements `protocol.DeviceKv`."""

    def __init__(self, cache: torch.Tensor, count: int) -> None:
        """The first `count` blocks of `cache`."""
        super().__init__(cache[:count].flatten(1).view(torch.uint8))
        self._host = torch.empty((0, self._bytes.shape[1]), dtype=torch.uint8)

    def host(self, slots: int) -> npt.NDArray[np.uint8]:
        """Memory that the device copies from and to by itself; all of it is taken at once."""
        host = pages(slots, self._bytes.shape[1])
        self._host = torch.from_numpy(host)
        if host.size and self._bytes.is_cuda:
            _pin(host)
        return host

    def stash(self, block: int, slot: int) -> None:
        """Begin to copy a block into a slot."""
        self._host[slot].copy_(self._bytes[block], non_blocking=True)

    def fetch(self, slot: int, block: int) -> None:
        """Begin to copy a slot into a block."""
        self._bytes[block].copy_(self._host[slot], non_blocking=True)

    def copy(self, source: int, target: int) -> None:
        """From block to block, without leaving the device."""
        self._bytes[target].copy_(self._bytes[source])

    def settle(self) -> None:
        """Wait for all copies begun."""
        if self._bytes.is_cuda:
            torch.cuda.current_stream(self._bytes.device).synchronize()


def _pin(host: npt.NDArray[np.uint8]) -> None:
    error = int(torch.cuda.cudart().cudaHostRegister(host.ctypes.data, host.nbytes, 0))
    if error:
        log.warning(
            "host KV of %d bytes could not be pinned (CUDA error %d): copies take longer; "
            "raise the pod's memory or lower --host-kv-bytes",
            host.nbytes,
            error,
        )
