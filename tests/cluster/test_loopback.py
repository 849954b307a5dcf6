"""The API server alone, as other tests get it by the fixture `control_plane`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from localcluster import processes
from localcluster.loopback import Api
from localcluster.paths import CLUSTER_FOLDER

pytestmark = pytest.mark.cluster

_HOLD_AN_API = """
import sys, time
sys.path.insert(0, sys.argv[1])
from localcluster.loopback import control_plane
with control_plane() as api:
    print(api.url, api.folder, flush=True)
    time.sleep(600)
"""


def test_it_serves_admission_policies_and_pod_security(control_plane: Api) -> None:
    kinds = control_plane.kubectl("api-resources", "--api-group=admissionregistration.k8s.io")
    assert "validatingadmissionpolicies" in kinds
    control_plane.kubectl("create", "namespace", "strict")
    control_plane.kubectl(
        "label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted"
    )
    control_plane.kubectl("create", "serviceaccount", "default", "--namespace=strict")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        control_plane.kubectl("run", "p", "--namespace=strict", "--image=x", "--privileged")
    assert "violates PodSecurity" in refused.value.stderr


def test_each_write_is_one_line_of_the_audit_log(control_plane: Api) -> None:
    control_plane.kubectl("create", "configmap", "counted", "--from-literal=a=b")
    lines = [json.loads(line) for line in control_plane.audit_log.read_text().splitlines()]
    writes = [
        line
        for line in lines
        if line["verb"] == "create" and line.get("objectRef", {}).get("name") == "counted"
    ]
    assert len(writes) == 1
    assert writes[0]["user"]["username"] == "admin"


def test_it_ends_with_a_test_run_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_AN_API, str(CLUSTER_FOLDER)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        folder = holder.stdout.readline().split()[1]
        running = _processes_naming(folder)
        assert len(running) == 2, running
        holder.kill()
    processes.wait_until(
        lambda: not any(process.alive for process in running), what="etcd to end", seconds=10
    )
    shutil.rmtree(folder)  # only files are left of it


def _processes_naming(folder: str) -> list[processes.Process]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        process = processes.look_up(folder, int(entry.name))
        if folder in command and process is not None:
            found.append(process)
    return found
