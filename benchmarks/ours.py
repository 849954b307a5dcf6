"""The operator's own placer under the interface of the benchmark: a pod becomes a Request.

No policy here: nodes, needs and places go through `sojourn_operator.plan` as in the operator.
"""

from dataclasses import replace
from typing import Final

from openb import Machine, Pod
from sojourn_api.gpus import REFERENCE_TBPS, REFERENCE_TFLOPS, Speed
from sojourn_operator.plan.mix import Flow, mix_of
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
    """`place` and `remove` as the baselines have them; sees for itself whether pods leave."""

    def __init__(
        self,
        machines: list[Machine],
        *,
        mix: Mix,
        weights: Weights | None = None,
        passing: Weights | None = None,
        observe: bool = False,
    ) -> None:
        self.nodes = [node_of(machine, index) for index, machine in enumerate(machines)]
        self._position = {node.name: index for index, node in enumerate(self.nodes)}
        self.placer = Placer(Policy(weights, passing), self.nodes)
        self._observe = observe
        self._seen: list[Request] = []
        self._flow = Flow()
        self._held: dict[int, tuple[Placed, Holding]] = {}
        self._know(mix)

    def _know(self, mix: Mix) -> None:
        self._mix = mix
        self.placer.retune(mix)
        for request, _ in mix.counts:
            self.placer.find(request, request.shards)

    def place(self, pod: Pod) -> Placed | None:
        request = request_of(pod)
        if self._observe:
            self._seen.append(request)
            if len(self._seen) in LOOKS:
                self._know(replace(mix_of(self._seen), passing=self._mix.passing))
        place = self.placer.find(request, pod.gpus)
        if place is None:
            return None
        self.placer.take(self.placer.take_at(place, request))
        self._flow.count(came=1)
        return self._spot(place)

    def rescue(
        self, pod: Pod, placed: dict[int, tuple[Pod, Placed]], limit: int
    ) -> tuple[Placed, dict[int, Placed]] | None:
        """Let a refused pod in by moving others: its place, and where those went by number."""
        holdings = self._holdings(placed)
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

    def _holdings(self, placed: dict[int, tuple[Pod, Placed]]) -> dict[str, list[Holding]]:
        """Who is on each node; made anew only for those that came or moved."""
        for number in self._held.keys() - placed.keys():
            del self._held[number]
        found: dict[str, list[Holding]] = {}
        for number, (pod, where) in placed.items():
            known = self._held.get(number)
            if known is None or known[0] is not where:
                request = request_of(pod)
                what = self.placer.take_at(self._place(pod, where), request)
                known = self._held[number] = where, Holding(str(number), what, request)
            found.setdefault(known[1].what.node, []).append(known[1])
        return found

    def _spot(self, place: Place) -> Placed:
        return self._position[place.node], tuple(use.ordinal for use in place.gpus)

    def _place(self, pod: Pod, where: Placed) -> Place:
        uses = tuple(GpuUse(ordinal=index, slices=0, share=pod.milli) for index in where[1])
        return Place(node=self.nodes[where[0]].name, gpus=uses)

    def remove(self, pod: Pod, node: int, gpus: tuple[int, ...]) -> None:
        place = self._place(pod, (node, gpus))
        self.placer.give(self.placer.take_at(place, request_of(pod)))
        self._flow.count(went=1)
        if self._flow.passing is not self._mix.passing:
            self._know(replace(self._mix, passing=self._flow.passing))
