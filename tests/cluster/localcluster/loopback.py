"""etcd and kube-apiserver alone, on free ports of the host's loopback: the API without nodes.

Ready in 3 s, for tests of CRDs, admission and watches. It needs no root, and ends with the process
that started it, however that ends. Where a test is about numbers, kube-scheduler and kwok's
simulated nodes come in addition.
"""

import contextlib
import json
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import apiserver, binaries, processes
from localcluster.certs import Authority
from localcluster.controlplane import answers
from localcluster.forward import free_port
from localcluster.paths import CLUSTER_FOLDER

_STAGES = CLUSTER_FOLDER / "manifests" / "kwok-stages.yaml"


@dataclass(frozen=True, slots=True)
class Api:
    """A running API server. `audit_log` has one JSON line for each request."""

    url: str
    kubeconfig: Path
    audit_log: Path
    folder: Path
    kubectl_path: Path

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Its output; `subprocess.CalledProcessError` with stderr when it fails."""
        return subprocess.run(
            [str(self.kubectl_path), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
        ).stdout


@contextlib.contextmanager
def control_plane() -> Iterator[Api]:
    programs = binaries.ensure("etcd", "kube-apiserver", "kubectl")
    folder = Path(tempfile.mkdtemp(prefix="sojourn-api-"))
    addresses = apiserver.Addresses(
        etcd_port=free_port(0), etcd_peer_port=free_port(0), bind="127.0.0.1", port=free_port(0)
    )
    authority = Authority.create(folder / "certificates")
    credentials = apiserver.issue(authority, addresses=addresses)
    admin = authority.issue("admin", user="admin", group="system:masters")
    url = f"https://127.0.0.1:{addresses.port}"
    api = Api(url, folder / "kubeconfig", folder / "audit.log", folder, programs["kubectl"])
    authority.write_kubeconfig(api.kubeconfig, server=url, pair=admin)
    commands = {
        "etcd": apiserver.etcd_command(
            programs["etcd"], addresses=addresses, folder=folder / "etcd"
        ),
        "kube-apiserver": apiserver.apiserver_command(
            programs["kube-apiserver"],
            addresses=addresses,
            credentials=credentials,
            audit_log=api.audit_log,
            audit_policy=authority.folder / "audit-policy.json",
        ),
    }
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        for name, command in commands.items():
            stack.enter_context(_running(command, log=folder / f"{name}.log"))
        context = ssl.create_default_context(cafile=str(authority.pair.certificate))
        _wait(f"{url}/readyz", context, folder)
        yield api


@contextlib.contextmanager
def scheduler(api: Api) -> Iterator[None]:
    """kube-scheduler as fast as it can be: its own limit of 50 requests a second is lifted."""
    program = binaries.ensure("kube-scheduler")["kube-scheduler"]
    path = api.folder / "scheduler.json"
    connection = {"kubeconfig": str(api.kubeconfig), "qps": 5000, "burst": 10_000}
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": connection,
        "leaderElection": {"leaderElect": False},
    }
    path.write_text(json.dumps(configuration))
    command = [str(program), f"--config={path}", "--secure-port=0"]
    with _running(command, log=api.folder / "kube-scheduler.log"):
        yield


@contextlib.contextmanager
def simulated_nodes(api: Api) -> Iterator[None]:
    """kwok runs the pods that are bound to any node, and removes those that are deleted.

    Pods get addresses of the loopback range, so that nothing that asks them leaves this machine.
    """
    program = binaries.ensure("kwok")["kwok"]
    command = [
        str(program),
        f"--kubeconfig={api.kubeconfig}",
        f"--config={_STAGES}",
        "--manage-all-nodes=true",
        "--node-lease-duration-seconds=0",  # no node controller would read the Leases
        "--node-ip=127.0.0.1",
        "--cidr=127.64.0.1/10",
    ]
    with _running(command, log=api.folder / "kwok.log"):
        yield


def _wait(url: str, context: ssl.SSLContext, folder: Path) -> None:
    try:
        processes.wait_until(
            lambda: answers(url, context), what="the API server on loopback", seconds=60
        )
    except processes.ProcessError as error:
        tail = (folder / "kube-apiserver.log").read_text()[-2000:]
        raise processes.ProcessError(f"{error}\n{tail}") from error


@contextlib.contextmanager
def _running(command: Sequence[str], *, log: Path) -> Iterator[None]:
    # pdeathsig: a test run that is killed takes these along.
    with log.open("ab") as output:
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdout=output, stderr=output
        )
    try:
        yield
    finally:
        child.kill()
        child.wait()
