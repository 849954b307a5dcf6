"""Telling pods' memory from strangers'."""

import os
from pathlib import Path

import pytest
from sojourn_deviceplugin.facts import ProcessUse
from sojourn_deviceplugin.processes import cgroup_of, of_pods, pod_uid, uses

UID = "0f6a3c1e-8f5b-4b7e-9a53-0c6d2f1e7a90"


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods/burstable/pod{UID}/abcdef",
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-1.scope",
        f"12:devices:/node-a/kubepods/pod{UID}/1\n11:memory:/node-a/kubepods/pod{UID}/1",
    ],
)
def test_a_pods_cgroup_names_it(cgroup: str) -> None:
    assert pod_uid(cgroup) == UID


@pytest.mark.parametrize("cgroup", ["", "0::/system.slice/ssh.service", "0::/podman/x"])
def test_other_cgroups_name_no_pod(cgroup: str) -> None:
    assert pod_uid(cgroup) == ""


def test_a_process_that_has_ended_has_no_cgroup(tmp_path: Path) -> None:
    assert cgroup_of(1, proc=tmp_path) == ""
    assert cgroup_of(os.getpid(), proc=Path("/proc"))


PROCESSES = [ProcessUse(1, 10), ProcessUse(2, 20), ProcessUse(3, 40), ProcessUse(4, 80)]
PODS = {1: UID, 2: UID, 3: "another-pod"}


def test_what_belongs_to_no_pod_with_a_grant_is_foreign() -> None:
    found = uses(PROCESSES, pods=PODS, holders=[UID])
    assert found.foreign == 120
    assert [process.pid for process in found.strangers] == [3, 4]


def test_processes_are_told_apart_by_pod() -> None:
    found = of_pods(PROCESSES, pods=PODS)
    pids = {uid: [process.pid for process in used] for uid, used in found.items()}
    assert pids == {UID: [1, 2], "another-pod": [3], "": [4]}
