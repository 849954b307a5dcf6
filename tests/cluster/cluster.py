"""A real Kubernetes of two nodes on this machine; after `cluster.py down` nothing of it is left.

Only the command line, run by plain python3 (3.11 or later). What each command does is in
localcluster/.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from localcluster import binaries, fakegpus, forward, images, lifecycle, models, node, processes
from localcluster.layers import forget_unused, image_cache
from localcluster.paths import AUDIT_LOG, CLUSTER_FOLDER, KUBECONFIG, LOGS, NODES


def _build(_: argparse.Namespace) -> None:
    binaries.ensure(*binaries.BINARIES)
    for name in binaries.BINARIES:
        print(f"{name}={binaries.path_of(name)}")
    print(f"model={models.fetch()}")


def _model(_: argparse.Namespace) -> None:
    print(models.fetch())


def _up(_: argparse.Namespace) -> None:
    started = time.monotonic()
    if lifecycle.up():
        print(f"two nodes are Ready after {time.monotonic() - started:.0f} s")
    else:
        print("a cluster runs already: using it")
    print(f"export KUBECONFIG={KUBECONFIG}")


def _down(_: argparse.Namespace) -> None:
    lifecycle.down()
    print("nothing of the cluster is left")


def _status(_: argparse.Namespace) -> None:
    if not processes.recorded():
        print("no cluster runs here: start one with `cluster.py up`")
        raise SystemExit(3)  # as `systemctl status` does for what does not run
    for process in processes.recorded():
        print(f"{process.name:15} pid {process.pid:<8} {'runs' if process.alive else 'is dead'}")
    print(f"kubeconfig {KUBECONFIG}\naudit log  {AUDIT_LOG}\nlogs       {LOGS}", flush=True)
    if not lifecycle.is_running():
        raise lifecycle.ClusterError("part of the cluster is dead: run `cluster.py up` again")
    _run_tool("kubectl", ["get", "nodes,pods", "--all-namespaces", "-o", "wide"])


def _kubeconfig(_: argparse.Namespace) -> None:
    print(KUBECONFIG)


def _images(_: argparse.Namespace) -> None:
    started = time.monotonic()
    built = [*images.build_basic(), *images.build_components()]
    forget_unused()
    for image in built:
        print(f"{image.name} {image.manifest.digest}")
    if lifecycle.is_running():
        print(f"loading {len(built)} images into {len(NODES)} nodes ...", flush=True)
        images.load_everywhere(built)
        print(f"built and loaded into {len(NODES)} nodes", end="")
    else:
        print(f"built in {image_cache()}; run this again when a cluster is up", end="")
    print(f" after {time.monotonic() - started:.0f} s")


def _exec_node(arguments: argparse.Namespace) -> None:
    name, *command = arguments.arguments or ["", ""]
    if name not in {each.name for each in NODES} or not command:
        raise lifecycle.ClusterError("say which node and which command: exec-node node-a ps aux")
    raise SystemExit(subprocess.run(node.command_on(name, command), check=False).returncode)


def _kill_node(arguments: argparse.Namespace) -> None:
    node.kill(arguments.node)


def _start_node(arguments: argparse.Namespace) -> None:
    node.restart(arguments.node)


def _forward(arguments: argparse.Namespace) -> None:
    print(forward.address_of(arguments.address))


def _storage(arguments: argparse.Namespace) -> None:
    template = (CLUSTER_FOLDER / "manifests" / "storage.yaml").read_text()
    manifest = template.replace("${NAMESPACE}", arguments.namespace)
    kubectl = lifecycle.Cluster().kubectl
    print(kubectl("apply", "-f", "-", stdin=manifest), end="")
    # A pod that starts before they are bound is retried seconds later only.
    bound = ("wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=30s")
    claims = ("pvc/sojourn-store", "pvc/sojourn-models", f"--namespace={arguments.namespace}")
    kubectl(*bound, *claims)


def _kubectl(arguments: argparse.Namespace) -> None:
    raise SystemExit(_run_tool("kubectl", arguments.arguments))


def _helm(arguments: argparse.Namespace) -> None:
    raise SystemExit(_run_tool("helm", arguments.arguments))


def _run_tool(name: str, arguments: Sequence[str]) -> int:
    program = binaries.ensure(name)[name]
    environment = os.environ | {"KUBECONFIG": str(KUBECONFIG)}
    return subprocess.run([str(program), *arguments], env=environment, check=False).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, action: Callable[[argparse.Namespace], None], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(action=action)
        return command

    def add_tool(name: str, action: Callable[[argparse.Namespace], None], text: str) -> None:
        # No prefix: its options are the tool's, not ours.
        command = commands.add_parser(name, help=text, add_help=False, prefix_chars="\0")
        command.set_defaults(action=action)
        command.add_argument("arguments", nargs="*")

    add("build", _build, "fill the cache with all that the tests need (once, some fifteen minutes)")
    add("model", _model, "print the path of the small model, fetched if need be")
    add("up", _up, "start the cluster, after cleaning up what an unclean stop has left")
    add("down", _down, "stop it and remove everything of it")
    add("status", _status, "what runs, and where its logs are")
    add("kubeconfig", _kubeconfig, "the path to use as KUBECONFIG")
    add("images", _images, "build the components' images from this checkout and load them")
    for name, action, text in (
        ("kill-node", _kill_node, "end a node as if its power were cut"),
        ("start-node", _start_node, "start it again, with its disk as it was"),
    ):
        add(name, action, text).add_argument("node", choices=[each.name for each in NODES])
    command = add("forward", _forward, "print the local address that leads to IP:PORT inside")
    command.add_argument("address", help="a pod's or Service's IP:PORT")
    command = add("storage", _storage, "create the volumes and claims for store and models")
    command.add_argument("namespace")
    add_tool("kubectl", _kubectl, "run the pinned kubectl against the cluster")
    add_tool("helm", _helm, "run the pinned helm against the cluster")
    add_tool("exec-node", _exec_node, "NODE COMMAND...: run a command on a node; crictl is there")
    return parser


def main() -> None:
    arguments = _parser().parse_args()
    # Debian keeps ip, iptables and runc where the PATH of a `su` or of cron does not look.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    try:
        arguments.action(arguments)
    except (
        binaries.BuildError,
        fakegpus.FakeGpuError,
        forward.ForwardError,
        images.ImageError,
        lifecycle.ClusterError,
        models.ModelError,
        processes.ProcessError,
        subprocess.CalledProcessError,
    ) as error:
        said = getattr(error, "stderr", None) or ""
        print(f"cluster.py: {error}\n{said}".rstrip(), file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
