"""Start and stop of the local cluster, also after everything in it was killed.

These tests stop the cluster, so they run only on one that this test run has started.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from localcluster import lifecycle, processes, traces
from localcluster.lifecycle import Cluster
from localcluster.paths import CLUSTER_FOLDER, STATE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_POD = """
apiVersion: v1
kind: Pod
metadata: {name: sleeper, namespace: kube-public}
spec:
  containers:
  - {name: c, image: "sojourn/base:dev", args: [-c, "import signal; signal.pause()"]}
"""


def _cluster(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CLUSTER_FOLDER / "cluster.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | ({"PATH": path} if path else {}),
    )


@pytest.fixture
def own_cluster(cluster: Cluster) -> Cluster:
    if not cluster.ours:
        pytest.skip("a cluster ran before the tests: `cluster.py down` first, to test its stop")
    return cluster


def test_what_the_machine_lacks_is_named_with_the_command_that_installs_it() -> None:
    done = _cluster("up", path="/nonexistent")
    assert done.returncode == 1
    assert "containerd" in done.stderr
    assert "apt-get install" in done.stderr


def test_a_second_start_uses_the_running_cluster(own_cluster: Cluster) -> None:
    before = processes.recorded()
    done = _cluster("up")
    assert "runs already" in done.stdout
    assert processes.recorded() == before
    assert own_cluster.kubeconfig.exists()


def test_it_starts_again_after_everything_was_killed(own_cluster: Cluster) -> None:
    _run_a_pod(own_cluster)
    doomed = traces.processes_of_cluster()
    for process in doomed:
        if process.alive:
            os.kill(process.pid, signal.SIGKILL)
    processes.wait_until(
        lambda: not any(process.alive for process in doomed), what="their end", seconds=20
    )
    assert _cluster("status").returncode != 0
    done = _cluster("up")
    assert done.returncode == 0, done.stderr
    _run_a_pod(own_cluster)


def test_a_cluster_whose_records_were_lost_is_found_and_stopped(own_cluster: Cluster) -> None:
    running = traces.processes_of_cluster()
    shutil.rmtree(STATE)
    assert _cluster("down").returncode == 0
    processes.wait_until(
        lambda: not any(process.alive for process in running), what="their end", seconds=20
    )
    assert _cluster("up").returncode == 0
    _run_a_pod(own_cluster)


def test_a_dead_node_is_noticed_and_its_pods_run_again_when_it_is_back(
    own_cluster: Cluster,
) -> None:
    _run_a_pod(own_cluster)
    query = ("get", "pod/sleeper", "-n=kube-public", "-o=jsonpath={.spec.nodeName}")
    home = own_cluster.kubectl(*query)
    own_cluster.kill_node(home)
    lost = ("wait", "--for=condition=Ready=Unknown", f"node/{home}", "--timeout=60s")
    own_cluster.kubectl(*lost)
    own_cluster.start_node(home)
    own_cluster.kubectl("wait", "--for=condition=Ready", f"node/{home}", "--timeout=60s")
    restarts = "{.status.containerStatuses[0].restartCount}"
    again = ("wait", f"--for=jsonpath={restarts}=1", "pod/sleeper", "-n=kube-public")
    own_cluster.kubectl(*again, "--timeout=60s")


def test_nothing_is_left_of_a_stopped_cluster(own_cluster: Cluster) -> None:
    """Stopped twice: what the second start and stop leave is compared with what was before."""
    assert _cluster("down").returncode == 0
    before = traces.of_host()
    try:
        lifecycle.up()
        _run_a_pod(own_cluster)
        running = traces.processes_of_cluster()
        assert len(running) > 10, "supervisors, control plane, nodes, shims and pods"
        assert traces.of_host() != before, "the comparison sees a running cluster"
        assert _cluster("down").returncode == 0
        assert traces.of_host() == before
        assert [process for process in running if process.alive] == []
        assert _cluster("down").returncode == 0, "a second stop finds nothing to do"
    finally:
        lifecycle.up()  # the tests that follow use it


def _run_a_pod(cluster: Cluster) -> None:
    processes.wait_until(
        lambda: "default" in cluster.kubectl("get", "serviceaccounts", "-n=kube-public"),
        what="the service account",
        seconds=20,
    )
    cluster.kubectl("apply", "-f", "-", stdin=_POD)
    ready = ("wait", "--for=condition=Ready", "pod/sleeper", "-n=kube-public", "--timeout=60s")
    cluster.kubectl(*ready)
