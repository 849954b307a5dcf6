"""What an MPS client is told, and whether a daemon is there at all."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sojourn_deviceplugin import mps
from sojourn_deviceplugin.config import Config, MpsThreads
from sojourn_deviceplugin.health import Verdict
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.offers import Offer, answer
from sojourn_deviceplugin.registry import Known

GIB = 1024**3
GPU = Known("GPU-1", 0, "A100", memory_bytes=80 * GIB, slice_bytes=GIB, slices=79, minor=0)
GRANT = Grant(0, frozenset(f"d-{n}" for n in range(12)), slot="1", made_ns=0, mps=True)
OFFER = Offer(gpu=GPU, verdict=Verdict(healthy=True))
WITH = Config(mps_pipe_dir=Path("/run/mps/pipe"))


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: a socket's may not exceed 107 characters."""
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_daemon_is_there_while_it_listens(short: Path, kind: socket.SocketKind) -> None:
    assert not mps.answers(short)
    with socket.socket(socket.AF_UNIX, kind) as daemon:
        daemon.bind(str(short / mps.CONTROL))
        daemon.listen()
        assert mps.answers(short)
    assert (short / mps.CONTROL).exists()
    assert not mps.answers(short)


def test_a_daemon_that_hangs_is_none_and_holds_nobody_up(short: Path) -> None:
    """It takes no calls any more, and its queue is full."""
    with socket.socket(socket.AF_UNIX) as daemon, contextlib.ExitStack() as queue:
        daemon.bind(str(short / mps.CONTROL))
        daemon.listen(0)
        while mps.answers(short):
            waiting = queue.enter_context(socket.socket(socket.AF_UNIX))
            waiting.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(short / mps.CONTROL))


def test_a_client_is_held_to_its_slices() -> None:
    envs = answer(OFFER, GRANT, WITH).envs
    assert envs["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps/pipe"
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "GPU-1=12288M"
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "16"  # 12 of 79, rounded up


def test_it_may_have_all_multiprocessors() -> None:
    envs = answer(OFFER, GRANT, replace(WITH, mps_threads=MpsThreads.ALL)).envs
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"


def test_it_gets_the_pipes_and_what_the_daemon_shares() -> None:
    config = replace(WITH, mps_shm_dir=Path("/run/mps/shm"))
    mounts = {mount.container_path: mount for mount in answer(OFFER, GRANT, config).mounts}
    assert mounts["/run/mps/pipe"].host_path == "/run/mps/pipe"
    assert mounts["/dev/shm"].host_path == "/run/mps/shm"
    assert not mounts["/run/mps/pipe"].read_only


def test_without_a_daemon_nothing_is_said_of_it() -> None:
    response = answer(OFFER, replace(GRANT, mps=False), WITH)
    assert not [name for name in response.envs if name.startswith("CUDA")]
    assert len(response.mounts) == 2
