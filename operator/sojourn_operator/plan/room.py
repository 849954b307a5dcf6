"""What is left of one node while a plan is made: CPU, memory, pods, and per GPU slices and time.

Plain arithmetic that may go below zero: room that is still held by a victim and already kept for
its claimant is owed twice for a while. Who may use a GPU is `need`'s question, which one is
`score`'s.
"""

from dataclasses import dataclass
from functools import lru_cache

from sojourn_operator.plan.need import GpuNeed, Kinds, kinds_of
from sojourn_operator.plan.state import Node
from sojourn_operator.plan.take import WHOLE, Take

Choice = tuple[float, int, tuple[int, ...]]
"""What serving a need on GPUs costs, the thousandths of GPUs that it takes, and which GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class Blank:
    """What nodes are alike in that hold nothing yet; one object for all of them, so that one
    rating does for all.
    """

    cpu: int
    memory: int
    pods: int
    kinds: Kinds
    groups: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(node: Node, kinds: Kinds, groups: tuple[tuple[int, ...], ...]) -> "Blank":
        """The one that stands for this node."""
        return _interned(node.cpu_milli, node.memory_bytes, node.pods, kinds, groups)


@lru_cache(maxsize=4096)
def _interned(
    cpu: int, memory: int, pods: int, kinds: Kinds, groups: tuple[tuple[int, ...], ...]
) -> Blank:
    return Blank(cpu, memory, pods, kinds, groups)


class Room:
    """The mutable remains of `node`. `memo` is `score`'s, emptied by every change."""

    __slots__ = (
        "blank",
        "cpu",
        "free",
        "groups",
        "idle_cost",
        "kinds",
        "left",
        "memo",
        "memory",
        "node",
        "parts",
        "pods",
        "slices",
        "usable",
        "whole",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.usable = node.schedulable and node.ready and node.heard and not node.draining
        self.cpu = node.cpu_milli
        self.memory = node.memory_bytes
        self.pods = node.pods
        self.slices = [gpu.slices if gpu.healthy else 0 for gpu in node.gpus]
        self.parts = [WHOLE if gpu.healthy else 0 for gpu in node.gpus]
        self.left = [0] * len(node.gpus)
        self.free = self.whole = 0
        self.groups = link_groups(node)
        self.kinds = kinds_of(node)
        self.blank: Blank | None = Blank.of(node, self.kinds, self.groups)
        self.memo: dict[GpuNeed, Choice | None] = {}
        self.idle_cost: float | None = None
        for index in range(len(node.gpus)):
            self._measure(index)

    def take(self, what: Take) -> None:
        """Count a session in."""
        self._add(what, -1)

    def give(self, what: Take) -> None:
        """Count a session out."""
        self._add(what, 1)

    def copy(self) -> "Room":
        """The same room apart, for what-if."""
        twin = Room.__new__(Room)
        twin.node, twin.usable, twin.groups = self.node, self.usable, self.groups
        twin.kinds, twin.memo, twin.idle_cost = self.kinds, {}, None
        twin.blank = self.blank
        twin.cpu, twin.memory, twin.pods = self.cpu, self.memory, self.pods
        twin.slices, twin.parts, twin.left = self.slices[:], self.parts[:], self.left[:]
        twin.free, twin.whole = self.free, self.whole
        return twin

    def _add(self, what: Take, sign: int) -> None:
        self.blank = None
        self.cpu += sign * what.cpu_milli
        self.memory += sign * what.memory_bytes
        self.pods += sign
        self.memo.clear()
        self.idle_cost = None
        for index, slices, parts in what.gpus:
            self.slices[index] += sign * slices
            self.parts[index] += sign * parts
            self._measure(index)

    def _measure(self, index: int) -> None:
        """Bring `left`, `free` and `whole` up to date: thousandths of a GPU, by the scarcer of
        both.
        """
        left = self.parts[index] // 1000
        total = self.node.gpus[index].slices
        if total:
            left = min(left, self.slices[index] * 1000 // total)
        before, after = self.left[index], max(left, 0)
        self.left[index] = after
        self.free += after - before
        self.whole += (after == 1000) - (before == 1000)


def link_groups(node: Node) -> tuple[tuple[int, ...], ...]:
    """Indices of the node's GPUs in groups within which every pair is linked, largest first.

    A GPU goes to the first group that it is wholly linked to: exact where links come in islands,
    as NVLink's do, and never wrong elsewhere.
    """
    groups: list[list[int]] = []
    for index, gpu in enumerate(node.gpus):
        peers = set(gpu.links)
        for group in groups:
            if all(node.gpus[member].ordinal in peers for member in group):
                group.append(index)
                break
        else:
            groups.append([index])
    return tuple(tuple(group) for group in sorted(groups, key=len, reverse=True))
