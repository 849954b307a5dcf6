"""NVIDIA's MPS, where an administrator runs its control daemon: whether it is there, and what a
container is told that shall be its client.

The plugin starts no daemon and commands none. What a client is told holds it to its part, as long
as it keeps its environment; a GPU that the daemon serves is used by its clients alone.
"""

import errno
import socket
from pathlib import Path
from typing import Final

from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb
from sojourn_deviceplugin.config import Config, MpsThreads
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.registry import Known

CONTROL: Final = "control"
"""The daemon's socket in its pipe directory."""
SHM: Final = Path("/dev/shm")  # noqa: S108 - where CUDA looks for what client and server share
SECONDS: Final = 1.0
MIB: Final = 1024**2


def answers(pipes: Path) -> bool:
    """Whether a daemon listens there; its socket outlives it, so that a look at it is no proof."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.settimeout(SECONDS)
            try:
                probe.connect(str(pipes / CONTROL))
            except OSError as error:
                if error.errno == errno.EPROTOTYPE:
                    continue
                return False
            return True
    return False


def join(response: pb.ContainerAllocateResponse, grant: Grant, gpu: Known, config: Config) -> None:
    """Make the container a client, held to its slices.

    Its memory limit goes by the GPU's UUID. These are CUDA's own names, so of two GPUs' values only
    one arrives: a pod on several GPUs is not held by them.
    """
    if config.mps_pipe_dir is None:
        return
    size = grant.slices * gpu.slice_bytes
    threads = 100
    if config.mps_threads is MpsThreads.SLICES:
        threads = -(-100 * grant.slices // max(1, gpu.slices))
    response.envs["CUDA_MPS_PIPE_DIRECTORY"] = str(config.mps_pipe_dir)
    response.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"{gpu.uuid}={size // MIB}M"
    response.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(threads)
    for host, path in ((config.mps_pipe_dir, config.mps_pipe_dir), (config.mps_shm_dir, SHM)):
        if host is not None:
            response.mounts.add(container_path=str(path), host_path=str(host), read_only=False)
