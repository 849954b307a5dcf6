"""From nothing to two Ready nodes, and back to nothing, also after everything was killed half-way.

Each step may be repeated. What is left of an unclean stop is found by its fixed names, not only by
records.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import (
    binaries,
    cgroups,
    controlplane,
    fakegpus,
    forward,
    images,
    models,
    network,
    node,
    prerequisites,
    processes,
)
from localcluster.locks import exclusive
from localcluster.paths import (
    AUDIT_LOG,
    DATA,
    FORWARDED_API_PORT,
    KUBECONFIG,
    LOGS,
    NAME,
    NETWORK_NAMESPACE,
    NODES,
    STATE,
    cache_folder,
)

_NEEDED = {*controlplane.BINARIES, *node.BINARIES}
_PARTS = (controlplane.NAME, forward.NAME, *(n.name for n in NODES))


class ClusterError(Exception):
    """The cluster cannot start; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The running cluster, for tests. `ours`: started by this test run, so it may be stopped."""

    ours: bool = False
    kubeconfig: Path = KUBECONFIG
    audit_log: Path = AUDIT_LOG

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Its output; `subprocess.CalledProcessError` with stderr when it fails."""
        program = str(binaries.path_of("kubectl"))
        return subprocess.run(
            [program, f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def forward(self, target: str) -> str:
        """The address on the host's loopback that leads to `target` (IP:PORT) in the cluster."""
        return forward.address_of(target)

    def on_node(self, name: str, *command: str) -> str:
        return subprocess.run(
            node.command_on(name, command), capture_output=True, text=True, check=True
        ).stdout

    def kill_node(self, name: str) -> None:
        """As if its power were cut: kubelet, containerd and all pods end at once."""
        node.kill(name)

    def start_node(self, name: str) -> None:
        """Power again; its disk is as it was."""
        node.restart(name)

    def scenario(self, name: str) -> Path:
        """The file that says which GPUs the node pretends to have. Replace it by renaming."""
        return next(n.simulation for n in NODES if n.name == name) / "scenario.json"


def is_running() -> bool:
    alive = {process.name for process in processes.recorded() if process.alive}
    return alive >= set(_PARTS) and KUBECONFIG.exists()


def up() -> bool:
    """False if it ran already."""
    problems = prerequisites.missing()
    if problems:
        raise ClusterError("this machine lacks:\n" + "\n".join(map(str, problems)))
    programs = binaries.ensure(*(n for n in binaries.BINARIES if n in _NEEDED))
    basic = images.build_basic()
    models.fetch()
    with exclusive(NAME):
        if is_running():
            # Never stopped from here: somebody may use it.
            processes.wait_until(_nodes_ready, what="the running cluster's nodes", seconds=60)
            return False
        _clean()
        _say("starting etcd, the API server and two nodes (about a minute)")
        try:
            _start(programs, basic)
        except BaseException:
            # Half a cluster would only mislead. Its logs stay for the reader.
            _clean(keep_logs=True)
            raise
    return True


def down() -> None:
    with exclusive(NAME):
        _clean()


def _start(programs: dict[str, Path], basic: Sequence[images.Image]) -> None:
    STATE.mkdir(parents=True)
    DATA.mkdir(parents=True)
    fakegpus.lay_out()
    network.create()
    port = forward.free_port(FORWARDED_API_PORT)
    control_plane = controlplane.start(programs, forwarded_port=port)
    processes.start(forward.NAME, forward.command(port))
    node.start_all(programs, control_plane)
    for each in NODES:
        node.wait_for_containerd(each)
    _say("loading images into the nodes")
    images.load_everywhere(basic)
    _say("waiting until the API server and both nodes are Ready")
    controlplane.wait_until_ready(port)
    processes.wait_until(_nodes_ready, what="both nodes to be Ready", seconds=90)


def _say(what: str) -> None:
    """A line before each step that takes long."""
    print(f"{what} ...", file=sys.stderr, flush=True)


def _nodes_ready() -> bool:
    try:
        nodes = json.loads(Cluster().kubectl("get", "nodes", "-o", "json"))["items"]
    except subprocess.CalledProcessError:
        return False
    ready = {
        item["metadata"]["name"]
        for item in nodes
        for condition in item["status"].get("conditions", [])
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
    return ready == {each.name for each in NODES}


def _clean(*, keep_logs: bool = False) -> None:
    processes.kill(processes.recorded())
    processes.kill(processes.inside(NETWORK_NAMESPACE))  # whose records were lost
    network.delete()
    cgroups.delete()
    node.remove_mount_points()
    _refuse_mounts_below(DATA, STATE)
    if DATA.exists():
        shutil.rmtree(DATA)
    if STATE.exists():
        if keep_logs and LOGS.exists():
            kept = cache_folder() / "last-failed-logs"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(LOGS, kept)
        shutil.rmtree(STATE)


def _refuse_mounts_below(*folders: Path) -> None:
    """Removing a tree must never walk into something mounted there: weights, or a host's folder."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in mounted:
        if any(Path(point).is_relative_to(folder) for folder in folders):
            raise ClusterError(f"{point} is still mounted: run `umount {point}`, then this again")
