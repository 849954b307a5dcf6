"""MIG instances under a real kubelet: the node's status follows every reconfiguration."""

from collections.abc import Iterator

import pytest
from fakenvml import machine as fake
from localcluster.lifecycle import Cluster
from localcluster.paths import NODES
from nodeplugin import NodePlugin, installed, until
from sojourn_api import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

SMALL, LARGE = names.mig_resource("1g.10gb"), names.mig_resource("3g.40gb")
GPU0, GPU1 = names.gpu_resource(0), names.gpu_resource(1)
ALL = 79
"""Slices of an A100-80GB."""


def instance(number: int, profile: str, start: int) -> dict[str, object]:
    uuid = f"MIG-{number:08x}-0000-4000-8000-000000000000"
    return {"id": number, "uuid": uuid, "profile": profile, "start": start}


MIXED = [instance(1, "3g", 0), instance(2, "1g", 4), instance(3, "1g", 5)]
UNIFORM = [instance(10 + n, "1g", n) for n in range(7)]


@pytest.fixture(scope="module")
def plugin(cluster: Cluster) -> Iterator[NodePlugin]:
    if installed(cluster):
        pytest.skip("the chart's device plugin runs in this cluster")
    plugin = NodePlugin(cluster, NODES[1])
    plugin.settings["stateDir"] = str(plugin.folder / "state-mig")
    plugin.machine.gpus = [fake.gpu(n, mig={"mode": 0, "instances": []}) for n in range(2)]
    plugin.start()
    yield plugin
    plugin.kill()


def follows(plugin: NodePlugin, **wanted: int) -> None:
    """In capacity and in allocatable: nothing stale in either."""
    resources = {"gpu0": GPU0, "gpu1": GPU1, "small": SMALL, "large": LARGE}
    for part in ("capacity", "allocatable"):
        until(
            lambda part=part: (
                {  # type: ignore[misc]
                    name: plugin.counted(part).get(resources[name], 0) for name in wanted
                }
                == wanted
            ),
            seconds=30,
        )


def test_capacity_follows_the_mode_and_the_instances_without_a_restart(plugin: NodePlugin) -> None:
    follows(plugin, gpu0=ALL, gpu1=ALL, small=0, large=0)
    plugin.machine.set(0, mig={"mode": 1, "instances": MIXED})
    follows(plugin, gpu0=0, gpu1=ALL, small=2, large=1)
    plugin.machine.set(0, mig={"mode": 1, "instances": UNIFORM})
    follows(plugin, gpu0=0, gpu1=ALL, small=7, large=0)
    plugin.machine.set(1, mig={"mode": 1, "instances": [instance(30, "3g", 4)]})
    follows(plugin, gpu0=0, gpu1=0, small=7, large=1)
    for index in (0, 1):
        plugin.machine.set(index, mig={"mode": 0, "instances": []})
    follows(plugin, gpu0=ALL, gpu1=ALL, small=0, large=0)


def test_capacity_is_right_again_after_restarts_of_plugin_and_kubelet(plugin: NodePlugin) -> None:
    plugin.machine.set(0, mig={"mode": 1, "instances": MIXED})
    follows(plugin, gpu0=0, gpu1=ALL, small=2, large=1)
    plugin.kill()
    plugin.machine.gpus[0]["mig"] = {"mode": 1, "instances": UNIFORM}
    plugin.start()
    follows(plugin, gpu0=0, gpu1=ALL, small=7, large=0)
    plugin.restart_kubelet()
    follows(plugin, gpu0=0, gpu1=ALL, small=7, large=0)
    plugin.machine.set(0, mig={"mode": 0, "instances": []})
    follows(plugin, gpu0=ALL, gpu1=ALL, small=0, large=0)
