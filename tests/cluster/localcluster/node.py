"""One node: a containerd and a kubelet in pid and mount namespaces of their own.

Each node sees private folders under the fixed paths that kubelet and containerd insist on, and
that charts name. The programs' settings belong to `nodeconfig`, images to `images`, the
namespaces' first process to `supervisor`.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from localcluster import binaries, cgroups, models, nodeconfig, processes
from localcluster.controlplane import ControlPlane
from localcluster.nodeconfig import CONTAINERD_ENDPOINT
from localcluster.paths import (
    CONTAINERD,
    DATA,
    FIRST_SERVICE_ADDRESS,
    NAME,
    NETWORK_NAMESPACE,
    NODES,
    READY_FILE,
    STATE,
    Node,
    cache_folder,
)
from localcluster.supervisor import Bind, Program, Specification, namespace_command

BINARIES = ("kubelet", "crictl", *(binaries.CONTAINERD if CONTAINERD else ()))
LABELS = {"sojourn.dev/gpu": "true", "sojourn.dev/simulated": "true"}

# What a node sees at a fixed path, and the name of the folder of its own that is there.
_PRIVATE_FOLDERS = {
    "/var/lib/kubelet": "kubelet",
    "/var/lib/cni": "cni",
    "/var/log/pods": "pod-logs",
    "/var/log/containers": "container-logs",
    "/run/containerd": "run-containerd",
    "/run/netns": "netns",
    "/run/sojourn": "arbiter",
    "/var/lib/sojourn": "sojourn",
    "/opt/sojourn": "opt",
}
_CONTAINERD_ROOT = "/var/lib/containerd"
_MADE_FOLDERS = STATE / "made-folders.json"
SHARED_STORE = DATA / "store"


def start_all(programs: Mapping[str, Path], control_plane: ControlPlane) -> None:
    _make_mount_points()
    SHARED_STORE.mkdir(parents=True, exist_ok=True)
    SHARED_STORE.chmod(0o777)  # session pods run as a user of their own
    for node in NODES:
        _start(node, programs, control_plane)


def kill(node_name: str) -> None:
    """As if its power were cut."""
    process = processes.find(node_name)
    if process is not None:
        processes.kill([process])


def restart(node_name: str) -> None:
    """After `kill`: with the same disk. The kubelet finds its pods ended, as after a reboot."""
    process = processes.find(node_name)
    if process is None:
        raise processes.ProcessError("no cluster runs here: start one with `cluster.py up`")
    if not process.alive:
        path = STATE / f"{node_name}.json"
        processes.start(node_name, namespace_command(NETWORK_NAMESPACE, path))


def first_process(node_name: str) -> int | None:
    """The pid whose namespaces are the node's."""
    process = processes.find(node_name)
    return processes.only_child(process) if process and process.alive else None


def command_on(node_name: str, command: Sequence[str]) -> list[str]:
    pid = first_process(node_name)
    if pid is None:
        raise processes.ProcessError(f"{node_name} does not run: start it with `cluster.py up`")
    environment = (
        f"PATH={_path()}",
        f"CONTAINER_RUNTIME_ENDPOINT={CONTAINERD_ENDPOINT}",
    )
    namespaces = ("--target", str(pid), "--mount", "--net", "--pid")
    return ["nsenter", *namespaces, "--", "env", *environment, *command]


def _path() -> str:
    """Where programs of the node look for others: containerd for its shim, commands for `ctr`."""
    built = ("crictl", *(binaries.CONTAINERD[:1] if CONTAINERD else ()))
    folders = [str(binaries.path_of(name).parent) for name in built]
    return ":".join([*folders, os.environ.get("PATH", os.defpath)])


def _images_kept_of(node: Node) -> Path:
    """Kept between clusters, as a machine's disk is between boots: unpacking takes the longest."""
    return cache_folder() / "containerd" / NAME / node.name


def wait_for_containerd(node: Node) -> None:
    """And forget the containers of the cluster before, which live on in the kept records.

    It answers a moment before it has read them; what is asked then fails, and is asked again.
    """
    forget = ["crictl", "rmp", "--all", "--force"]

    def has_forgotten() -> bool:
        if first_process(node.name) is None:
            return False
        done = subprocess.run(command_on(node.name, forget), capture_output=True, check=False)
        return done.returncode == 0

    processes.wait_until(has_forgotten, what=f"containerd of {node.name}", seconds=60)


def remove_mount_points() -> None:
    """Those that `up` had to make on the host. They are empty: nodes wrote into their own."""
    if not _MADE_FOLDERS.exists():
        return
    made = json.loads(_MADE_FOLDERS.read_text())
    for other in Path("/run").glob(f"sojourn-*/{_MADE_FOLDERS.name}"):
        if other != _MADE_FOLDERS:
            # Another cluster has its mounts on them, and removing them here would undo those.
            other.write_text(json.dumps(sorted({*made, *json.loads(other.read_text())})))
            return
    for folder in made:
        if Path(folder).is_dir() and not any(Path(folder).iterdir()):
            Path(folder).rmdir()


def _make_mount_points() -> None:
    targets = (_CONTAINERD_ROOT, *_PRIVATE_FOLDERS)
    made = [target for target in targets if not Path(target).exists()]
    _MADE_FOLDERS.write_text(json.dumps(made))
    for target in made:
        Path(target).mkdir(parents=True)


def _binds(node: Node) -> Iterator[Bind]:
    for target, folder in _PRIVATE_FOLDERS.items():
        (node.folder / folder).mkdir(parents=True, exist_ok=True)
        yield Bind(str(node.folder / folder), target)
    _images_kept_of(node).mkdir(parents=True, exist_ok=True)
    yield Bind(str(_images_kept_of(node)), _CONTAINERD_ROOT)
    inside = [
        ("sim", node.simulation, False),
        ("store", SHARED_STORE, False),
        ("models", models.folder(), True),
        # Whichever version `make torch` has put there.
        *(("torch", folder, True) for folder in sorted(cache_folder().glob("torch-*-cp311"))[-1:]),
    ]
    for name, source, read_only in inside:
        if source.exists():
            (node.folder / "opt" / name).mkdir(exist_ok=True)
            yield Bind(str(source), f"/opt/sojourn/{name}", read_only)


def _start(node: Node, programs: Mapping[str, Path], control_plane: ControlPlane) -> None:
    cgroups.create(node.name)
    node.simulation.mkdir(parents=True, exist_ok=True)
    configuration = node.folder / "configuration"
    (configuration / "cni").mkdir(parents=True, exist_ok=True)
    (configuration / "cni" / "10-pods.conflist").write_text(json.dumps(nodeconfig.cni(node)))
    containerd = nodeconfig.containerd(configuration / "cni", cdi=bool(CONTAINERD))
    (configuration / "containerd.toml").write_text(containerd)
    (configuration / "resolv.conf").write_text(f"nameserver {FIRST_SERVICE_ADDRESS}\n")
    authority = control_plane.authority
    pair = authority.issue(
        node.name,
        user=f"system:node:{node.name}",
        group="system:nodes",
        addresses=[node.address, node.name],
    )
    authority.write_kubeconfig(configuration / "kubeconfig", server=control_plane.url, pair=pair)
    kubelet = nodeconfig.kubelet(
        node, pair=pair, clients=authority.pair.certificate, resolver=configuration / "resolv.conf"
    )
    (configuration / "kubelet.json").write_text(json.dumps(kubelet, indent=1))
    specification = Specification(
        [
            Program(
                "containerd",
                ["containerd", "--config", str(configuration / "containerd.toml")],
                str(processes.log_of(f"{node.name}-containerd")),
                environment={"PATH": _path()},
            ),
            Program(
                "kubelet",
                [
                    str(programs["kubelet"]),
                    f"--config={configuration / 'kubelet.json'}",
                    f"--kubeconfig={configuration / 'kubeconfig'}",
                    f"--hostname-override={node.name}",
                    f"--node-ip={node.address}",
                    "--node-labels=" + ",".join(f"{k}={v}" for k, v in LABELS.items()),
                ],
                str(processes.log_of(f"{node.name}-kubelet")),
                after=f"file:{READY_FILE}",
            ),
        ],
        list(_binds(node)),
    )
    path = STATE / f"{node.name}.json"
    specification.write(path)
    processes.start(node.name, namespace_command(NETWORK_NAMESPACE, path))
