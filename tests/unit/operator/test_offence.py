"""A charge of a device plugin meets the very pod that it names, and no later one."""

from sojourn_api.objects import GpuNode, ObjectMeta, Offender
from sojourn_operator.seen.cache import Seen
from sojourn_operator.seen.world import World, scene_of

from tests.unit.pretend_session import Pretend


def offence(*charges: Offender, node: str = "node-a") -> Offender | None:
    found = Pretend()
    found.place()
    found.run_pods()
    meta = ObjectMeta(node, "", "uid", 1, "")
    world = World(
        now=found.now,
        sessions={"team/chat": Seen(found.session)},
        gpu_nodes={node: GpuNode(meta, gpus=(), offenders=charges)},
    )
    pods = found.pods.values()
    return scene_of(world, "team/chat", pods=pods, lost_nodes=frozenset()).offence


def charge(uid: str, reason: str = "YieldIgnored", *, stop: bool = False) -> Offender:
    return Offender("team", "chat-1", uid, reason, "9 steps", stop=stop)


def test_a_charge_belongs_to_the_pod_of_its_uid_on_its_node() -> None:
    found = Pretend()
    found.place()
    uid = found.pods["chat-1"].uid
    assert offence(charge(uid)) == charge(uid)
    assert offence(charge("another")) is None
    assert offence(charge("")) is None
    assert offence(charge(uid), node="node-b") is None


def test_what_it_shall_be_stopped_for_comes_first() -> None:
    found = Pretend()
    found.place()
    uid = found.pods["chat-1"].uid
    stop = charge(uid, stop=True)
    assert offence(charge(uid, "OverMemory"), stop) == stop
