"""The device plugin under a real kubelet: how soon it is registered again, and how soon counted.

Needs the local cluster (`tests/cluster/cluster.py up`) without the chart's plugin; kills and starts
the kubelet of its second node again and again. Prints one JSON object (`--out FILE` writes it).
About five minutes for 100 restarts on two cores.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from fakenvml import machine as fake  # noqa: E402
from jsonfile import save  # noqa: E402
from localcluster import binaries  # noqa: E402
from localcluster.lifecycle import Cluster, is_running  # noqa: E402
from localcluster.paths import NODES  # noqa: E402
from nodeplugin import MIB_OF_288, NodePlugin, installed, until  # noqa: E402
from sojourn_api import names  # noqa: E402
from where import commit, machine  # noqa: E402

GPUS, SLICES = 16, 288
RESOURCES = frozenset(names.gpu_resource(n) for n in range(GPUS))
STATUS_SECONDS = 1.0
"""The kubelets' `nodeStatusUpdateFrequency` in this cluster; 10 s unless configured."""


def full(plugin: NodePlugin) -> bool:
    found = plugin.counted()
    return {found.get(resource) for resource in RESOURCES} == {SLICES}


def registered_after(plugin: NodePlugin, since: float) -> float | None:
    """When the last of all resources was registered with the kubelet of that socket."""
    times = [
        (resource, at)
        for resource, at in plugin.registered()
        if at >= since and resource in RESOURCES
    ]
    return max(at for _, at in times) if {name for name, _ in times} == RESOURCES else None


def registration(plugin: NodePlugin, since: float) -> float:
    until(lambda: registered_after(plugin, since), seconds=30, pause=0.05)
    last = registered_after(plugin, since)
    if last is None:
        raise AssertionError("registered, and then not")
    return last - since


def restarts(plugin: NodePlugin, rounds: int, *, lose_checkpoint: bool) -> dict[str, Any]:
    took = []
    for number in range(rounds):
        back = plugin.restart_kubelet(lose_checkpoint=lose_checkpoint)
        took.append(registration(plugin, back))
        until(lambda: plugin.kubelet() and full(plugin), seconds=60)
        print(f"{number + 1}: {took[-1]:.3f} s", file=sys.stderr, flush=True)
    return {
        "restarts": rounds,
        "withinOneSecond": sum(seconds <= 1 for seconds in took),
        "medianSeconds": round(statistics.median(took), 3),
        "slowestSeconds": round(max(took), 3),
    }


def counted(plugin: NodePlugin) -> dict[str, Any]:
    """From the last registration to the node's status, as the API server has it."""
    until(lambda: len({resource for resource, _ in plugin.registered()}) == GPUS, seconds=30)
    last = max(at for _, at in plugin.registered())
    until(lambda: full(plugin), seconds=30, pause=0.02)
    seen = time.time()  # the clock of the plugin's log
    return {
        "gpus": GPUS,
        "slices": SLICES,
        "statusPeriodSeconds": STATUS_SECONDS,
        "registeredToCountedSeconds": round(seen - last, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    parser.add_argument(
        "--restarts", type=int, default=100, help="half of them lose the checkpoint"
    )
    options = parser.parse_args()
    cluster = Cluster()
    if not is_running():
        parser.error("no cluster runs here: start one with tests/cluster/cluster.py up")
    if installed(cluster):
        parser.error("the chart's device plugin runs in this cluster: uninstall it first")
    plugin = NodePlugin(cluster, NODES[1])
    plugin.machine.gpus = [fake.gpu(n, name="NVIDIA B300", mib=MIB_OF_288) for n in range(GPUS)]
    plugin.start()
    try:
        lost = options.restarts // 2
        report = {
            "commit": commit(),
            "machine": machine(),
            "kubelet": binaries.KUBERNETES_VERSION,
            "status": counted(plugin),
            "checkpointKept": restarts(plugin, options.restarts - lost, lose_checkpoint=False),
            "checkpointLost": restarts(plugin, lost, lose_checkpoint=True),
        }
    finally:
        plugin.kill()
    print(json.dumps(report, indent=1))
    save(report, options.out)


if __name__ == "__main__":
    main()
