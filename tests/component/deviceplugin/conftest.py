"""Fixtures of the device plugin's tests; the rig itself is in tests/cluster/devicerig.py."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicerig import Rig
from fakekubelet import Kubelet, running
from fakenvml import machine as fake


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = fake.build(tmp_path_factory.mktemp("nvml"))
    fake.preload(built)
    return built


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: a socket's may not exceed 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="dp", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def rig(library: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    assert library.exists()
    scenario = short / "scenario.json"
    monkeypatch.setenv("FAKE_NVML_SCENARIO", str(scenario))
    machine = fake.Machine(scenario, gpus=[fake.gpu(0)])
    with running(Kubelet(short)) as kubelet:
        rig = Rig(short, machine, kubelet)
        yield rig
        machine.delays = {}
        machine.write()
        rig.stop()
