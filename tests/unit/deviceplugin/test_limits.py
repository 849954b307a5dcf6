"""Limits of the driver follow the grants, whatever the driver forgets or refuses."""

import shutil
from pathlib import Path

import pytest
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts
from sojourn_deviceplugin.limits import Cap, Limiter, LimitError, cgroups_of_pod

UID = "0f6a3c1e-8f5b-4b7e-9a53-0c6d2f1e7a90"
ABLE = NodeFacts(gpus=(GpuFacts(uuid="GPU-1", memory_limits=True),))


class Driver:
    """Keeps limits by GPU and cgroup; `error` is its answer to every change."""

    def __init__(self) -> None:
        self.limits: dict[tuple[str, Path], int] = {}
        self.writes = 0
        self.error = ""

    def read(self, uuid: str, cgroup: Path, /) -> int | None:
        return self.limits.get((uuid, cgroup))

    def write(self, uuid: str, cgroup: Path, size: int | None, /) -> None:
        self.writes += 1
        if self.error:
            raise LimitError(self.error)
        self.limits.pop((uuid, cgroup), None)
        if size is not None:
            self.limits[uuid, cgroup] = size


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").touch()
    return tmp_path


def pod(root: Path, *containers: str) -> Path:
    found = root / "kubepods" / "burstable" / f"pod{UID}"
    found.mkdir(parents=True)
    for name in containers:
        (found / name).mkdir()
    return found


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods/pod{UID}",
        f"kubepods/besteffort/pod{UID}",
        f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
        (
            "kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
        ),
    ],
)
def test_a_pods_cgroups_are_found_under_both_drivers_of_the_kubelet(root: Path, path: str) -> None:
    (root / path / "container").mkdir(parents=True)
    (root / path / "memory.max").touch()
    assert cgroups_of_pod(root, UID) == (root / path, root / path / "container")
    assert cgroups_of_pod(root, "another") == ()


def test_pod_and_containers_are_held_to_the_grant(root: Path) -> None:
    driver, cap = Driver(), ("GPU-1", UID)
    limiter = Limiter(driver, lambda: {cap: 7}, root=root)
    limiter.keep(ABLE)
    assert limiter.standing == frozenset()
    path = pod(root, "a", "b")
    limiter.keep(ABLE)
    assert driver.limits == {("GPU-1", one): 7 for one in (path, path / "a", path / "b")}
    assert limiter.standing == {cap}
    limiter.keep(ABLE)
    assert driver.writes == 3  # what holds is not set again


def test_a_pod_without_containers_is_limited_but_nobody_is_held_yet(root: Path) -> None:
    driver = Driver()
    limiter = Limiter(driver, lambda: {("GPU-1", UID): 7}, root=root)
    path = pod(root)
    limiter.keep(ABLE)
    assert driver.limits == {("GPU-1", path): 7}
    assert not limiter.standing


def test_what_the_driver_forgot_is_set_again(root: Path) -> None:
    driver, cap = Driver(), ("GPU-1", UID)
    limiter = Limiter(driver, lambda: {cap: 7}, root=root)
    pod(root, "a")
    limiter.keep(ABLE)
    before = dict(driver.limits)
    driver.limits.clear()
    limiter.keep(ABLE)
    assert driver.limits == before
    again = Limiter(driver, lambda: {cap: 7}, root=root)
    again.keep(ABLE)
    assert again.standing == {cap}  # a restart of the plugin costs nothing


def test_a_limit_is_lifted_when_its_grant_is_over(root: Path) -> None:
    driver = Driver()
    caps: dict[Cap, int] = {("GPU-1", UID): 7}
    limiter = Limiter(driver, lambda: caps, root=root)
    pod(root, "a")
    limiter.keep(ABLE)
    caps.clear()
    limiter.keep(NodeFacts(error="NVML is gone"))
    assert driver.limits  # nobody can be asked now
    limiter.keep(ABLE)
    assert driver.limits == {}
    assert not limiter.standing


def test_a_removed_cgroup_needs_no_lifting(root: Path) -> None:
    driver = Driver()
    caps: dict[Cap, int] = {("GPU-1", UID): 7}
    limiter = Limiter(driver, lambda: caps, root=root)
    path = pod(root, "a")
    limiter.keep(ABLE)
    shutil.rmtree(path)
    caps.clear()
    limiter.keep(ABLE)
    assert driver.writes == 2


def test_a_refusal_is_complained_of_once_and_claims_nothing(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver()
    driver.error = "no permission"
    limiter = Limiter(driver, lambda: {("GPU-1", UID): 7}, root=root)
    pod(root)
    limiter.keep(ABLE)
    limiter.keep(ABLE)
    assert not limiter.standing
    assert len(caplog.records) == 1


@pytest.mark.parametrize("facts", [NodeFacts(), NodeFacts(gpus=(GpuFacts(uuid="GPU-1"),))])
def test_no_limit_is_asked_of_a_driver_without_them(root: Path, facts: NodeFacts) -> None:
    driver = Driver()
    pod(root, "a")
    Limiter(driver, lambda: {("GPU-1", UID): 7}, root=root).keep(facts)
    assert driver.writes == 0


def test_an_older_cgroup_hierarchy_is_left_alone(tmp_path: Path) -> None:
    driver = Driver()
    pod(tmp_path, "a")
    Limiter(driver, lambda: {("GPU-1", UID): 7}, root=tmp_path).keep(ABLE)
    assert driver.writes == 0
