"""The ledger of all nodes with the index over it: where a request goes, and what that takes.

This is the one path by which sessions get places, in the operator, in simulations and in
benchmarks. It knows requests, not sessions: tiers, queues and victims are `plan`'s.
"""

from collections.abc import Callable, Iterable
from typing import Final

from sojourn_operator.plan.index import Index
from sojourn_operator.plan.need import Need, take_at
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.score import Policy
from sojourn_operator.plan.state import GpuUse, Mix, Node, Place, Request
from sojourn_operator.plan.take import Take

NEAR: Final = 50.0
"""Thousandths of a GPU that it may cost to come back where weights and snapshot were read last: a
guess; reading them elsewhere costs seconds once, a worse place costs as long as it is held.
"""


class Placer:
    """Rooms by node name; every change goes through `take`, `give`, `put_node` and `drop_node`."""

    def __init__(self, policy: Policy | None = None, nodes: Iterable[Node] = ()) -> None:
        self.rooms: dict[str, Room] = {}
        self.policy = policy or Policy()
        self.index = Index(self.policy, self.rooms)
        for node in nodes:
            self.put_node(node)

    def put_node(self, node: Node) -> None:
        """Add a node, or replace it, empty."""
        self.rooms[node.name] = Room(node)
        self.index.changed(node.name)

    def drop_node(self, name: str) -> None:
        """Remove a node with all that it holds."""
        del self.rooms[name]
        self.index.changed(name)

    def take(self, what: Take) -> None:
        """Count something in."""
        self.rooms[what.node].take(what)
        self.index.changed(what.node)

    def give(self, what: Take) -> None:
        """Count something out."""
        self.rooms[what.node].give(what)
        self.index.changed(what.node)

    def retune(self, mix: Mix) -> None:
        """Pack for another mix from now on."""
        self.policy.retune(mix, [room.node for room in self.rooms.values()])
        self.index.forget()

    def find(
        self, request: Request, shards: int, *, accept: Callable[[str], bool] | None = None
    ) -> Place | None:
        """The best free place over exactly `shards` GPUs."""
        best = self.index.best(request, shards, accept=accept)
        if best is None:
            return None
        name, need = best
        return self.place_on(self.rooms[name], need)

    def find_near(self, request: Request, shards: int, *, near: str, than: Place) -> Place:
        """The best place on the node `near` if that costs little more than the free place `than`,
        else `than`.
        """
        mine = self.index.score(request, shards, near)
        best = self.index.score(request, shards, than.node)
        if mine is None or best is None or (best - mine) * self.policy.weights.step > NEAR:
            return than
        need = self.index.need(self.rooms[near], request, shards)
        return than if need is None else self.place_on(self.rooms[near], need) or than

    def place_on(self, room: Room, need: Need) -> Place | None:
        """The best free place on one node's room (which may be a what-if copy)."""
        gpus = self.policy.choose(room, need)
        return None if gpus is None else place_at(room.node, gpus, need)

    def fits_at(self, place: Place, request: Request) -> bool:
        """Whether this very place is free."""
        room = self.rooms.get(place.node)
        if room is None or not room.usable:
            return False
        return holds(room, place, request, self.index.need(room, request, len(place.gpus)))

    def take_at(self, place: Place, request: Request) -> Take:
        """What the request takes at a place of a known node."""
        return take_at(self.rooms[place.node].node, place, request)


def place_at(node: Node, gpus: tuple[int, ...], need: Need) -> Place:
    """The place that stands for these GPU indices; a share that does not divide is rounded up."""
    return Place(
        node=node.name,
        gpus=tuple(
            GpuUse(ordinal=node.gpus[index].ordinal, slices=need.gpu.slices, share=need.gpu.share)
            for index in gpus
        ),
    )


def holds(room: Room, place: Place, request: Request, need: Need | None) -> bool:
    """Whether the room has what the request takes at this place, on GPUs that it may use."""
    if need is None or room.cpu < request.cpu_milli or room.memory < request.memory_bytes:
        return False
    wanted = take_at(room.node, place, request).gpus
    return (
        room.pods >= 1
        and len(wanted) == len(place.gpus)
        and all(
            need.gpu.parts[index] >= 0
            and room.slices[index] >= slices
            and room.parts[index] >= parts
            for index, slices, parts in wanted
        )
    )
