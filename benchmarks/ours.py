"""The operator's own placer under the interface of the benchmark: a pod becomes a Request.

No policy here: nodes, needs and places go through `sojourn_operator.plan` as in the operator.
"""

from typing import Final

from openb import Machine, Pod
from sojourn_api.gpus import REFERENCE_TBPS, REFERENCE_TFLOPS, Speed
from sojourn_operator.plan.mix import mix_of
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.rehome import Holding, let_in
from sojourn_operator.plan.score import Policy, Weights
from sojourn_operator.plan.state import Gpu, GpuUse, Mix, Node, Place, Request

REFERENCE = Speed(REFERENCE_TBPS, REFERENCE_TFLOPS)
"""The traces count every GPU as one, so each is a reference GPU here."""


def node_of(machine: Machine, position: int) -> Node:
    """Named by its place in the order, so that the order of ties is another one for every seed."""
    peers = range(machine.gpus)
    return Node(
        name=f"{position:04d}-{machine.name}",
        cpu_milli=machine.cpu,
        memory_bytes=machine.memory,
        pods=1 << 20,
        gpus=tuple(
            Gpu(
                ordinal=index,
                uuid=f"{machine.name}-{index}",
                model=machine.model,
                slices=0,
                speed=REFERENCE,
                links=tuple(peer for peer in peers if peer != index),
            )
            for index in peers
        ),
    )


def request_of(pod: Pod) -> Request:
    """A pod's thousandths are a share; GPUs of several are its shards."""
    return Request(
        slices=0,
        share=pod.demand,
        shards=pod.gpus,
        max_shards=pod.gpus,
        gpu_models=pod.models,
        cpu_milli=pod.cpu,
        memory_bytes=pod.memory,
    )


def mix_from(pods: list[Pod]) -> Mix:
    """The declared mix."""
    return mix_of(request_of(pod) for pod in pods)


Placed = tuple[int, tuple[int, ...]]
LOOKS: Final = (100, 300, 1000, 3000)
"""Arrivals after which an observed mix is taken over: a guess at few and early."""


class OurPlacer:
    """`place` and `remove` as the baselines have them."""

    def __init__(
        self,
        machines: list[Machine],
        *,
        mix: Mix,
        weights: Weights | None = None,
        observe: bool = False,
    ) -> None:
        self.nodes = [node_of(machine, index) for index, machine in enumerate(machines)]
        self._position = {node.name: index for index, node in enumerate(self.nodes)}
        self.placer = Placer(Policy(weights), self.nodes)
        self._observe = observe
        self._seen: list[Request] = []
        self._know(mix)

    def _know(self, mix: Mix) -> None:
        self.placer.retune(mix)
        for request, _ in mix.counts:
            self.placer.find(request, request.shards)

    def place(self, pod: Pod) -> Placed | None:
        request = request_of(pod)
        if self._observe:
            self._seen.append(request)
            if len(self._seen) in LOOKS:
                self._know(mix_of(self._seen))
        place = self.placer.find(request, pod.gpus)
        if place is None:
            return None
        self.placer.take(self.placer.take_at(place, request))
        return self._spot(place)

    def rescue(
        self, pod: Pod, placed: dict[int, tuple[Pod, Placed]], limit: int
    ) -> tuple[Placed, dict[int, Placed]] | None:
        """Let a refused pod in by moving others: its place, and where those went by number."""
        holdings: dict[str, list[Holding]] = {}
        for number, (other, where) in placed.items():
            if len(where[1]) == 1:
                what = self.placer.take_at(self._place(other, where), request_of(other))
                held = Holding(str(number), what, request_of(other))
                holdings.setdefault(what.node, []).append(held)
        request = request_of(pod)
        found = let_in(
            self.placer,
            request,
            shards=pod.gpus,
            movable=lambda node: holdings.get(node, ()),
            limit=limit,
        )
        if found is None:
            return None
        for held, _ in found.moves:
            self.placer.give(held.what)
        self.placer.take(self.placer.take_at(found.place, request))
        for held, home in found.moves:
            self.placer.take(self.placer.take_at(home, held.request))
        moved = {int(held.key): self._spot(home) for held, home in found.moves}
        return self._spot(found.place), moved

    def _spot(self, place: Place) -> Placed:
        return self._position[place.node], tuple(use.ordinal for use in place.gpus)

    def _place(self, pod: Pod, where: Placed) -> Place:
        uses = tuple(GpuUse(ordinal=index, slices=0, share=pod.milli) for index in where[1])
        return Place(node=self.nodes[where[0]].name, gpus=uses)

    def remove(self, pod: Pod, node: int, gpus: tuple[int, ...]) -> None:
        place = self._place(pod, (node, gpus))
        self.placer.give(self.placer.take_at(place, request_of(pod)))
