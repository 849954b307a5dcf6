"""The processes that compute one model together, on one machine: torch.distributed over loopback,
with gloo for what lies on the host and NCCL for what lies on CUDA devices.

Which outputs are whose is `split`'s. Importing this imports torch.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from sojourn_runtime.model.errors import InvalidConfiguration, ShardLost

SECONDS: Final = 20.0
"""A shard that takes longer than the others by so much is lost. A guess: the first pass reads
weights from a disk."""
DEVICE_SECONDS: Final = 120.0
"""The same on a device, where kernels are compiled first."""
LOOPBACK: Final = "127.0.0.1"


class ProcessGroup:
    """Implements `split.Group`."""

    def __init__(
        self,
        *,
        number: int,
        shards: int,
        port: int,
        listening: socket.socket | None = None,
        device: str,
    ) -> None:
        """`listening`: the first shard's socket at `port`, where the others find it; every shard
        computes on the CUDA device of its number.
        """
        on_device = device == "cuda" and torch.cuda.is_available()  # else Triton's interpreter
        if on_device:
            _check_devices(shards)
            torch.cuda.set_device(number)
        torch.set_num_threads(1)  # the kernels have threads of their own
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")  # a pod's own name may be unknown to its DNS
        with lost_if_silent():
            store = dist.TCPStore(
                LOOPBACK,
                port,
                shards,
                is_master=listening is not None,
                timeout=timedelta(seconds=DEVICE_SECONDS),
                wait_for_workers=False,
                master_listen_fd=listening.detach() if listening else None,
            )
            dist.init_process_group(
                "gloo",
                store=store,
                rank=number,
                world_size=shards,
                timeout=timedelta(seconds=SECONDS),
            )
            self._shards = shards
            self._on_device = None
            if on_device:
                limit = timedelta(seconds=DEVICE_SECONDS)
                self._on_device = dist.new_group(backend="nccl", timeout=limit)

    def gather(self, mine: npt.NDArray[np.float32]) -> Sequence[npt.NDArray[np.float32]]:
        return [part.numpy() for part in self.gathered(torch.from_numpy(mine))]

    def gathered(self, mine: torch.Tensor) -> Sequence[torch.Tensor]:
        """The same for contiguous tensors, on whatever device."""
        found = [torch.empty_like(mine) for _ in range(self._shards)]
        group = self._on_device if mine.is_cuda else None
        # as bytes: gloo does not know every type
        into = [part.view(torch.uint8) for part in found]
        with lost_if_silent():
            dist.all_gather(into, mine.view(torch.uint8), group=group)
        return found

    def agree(self, asked: bool) -> bool:  # noqa: FBT001 - a vote
        vote = torch.tensor([asked], dtype=torch.uint8)
        with lost_if_silent():
            dist.broadcast(vote, 0)
        return bool(vote.item())

    def close(self) -> None:
        dist.destroy_process_group()


def _check_devices(shards: int) -> None:
    found = torch.cuda.device_count()
    if found < shards:
        raise InvalidConfiguration(
            f"--shards {shards}: torch sees {found} CUDA devices, and each shard needs one of its "
            "own; grant more, or use fewer shards"
        )


def listener() -> socket.socket:
    """For the first shard, which takes it over."""
    return socket.create_server((LOOPBACK, 0))


@contextmanager
def lost_if_silent() -> Iterator[None]:
    """Whatever torch calls a peer that is gone or late, ShardLost to us.

    Around calls alone that wait for peers: one's own mistakes are RuntimeErrors as well.
    """
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).split())[:200]
        raise ShardLost(f"a shard does not answer; see the log: {said}") from error
