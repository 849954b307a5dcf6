"""What is left of one node while a plan is made: CPU, memory, pods, and per GPU slices and time.

Plain arithmetic that may go below zero: room that is still held by a victim and already kept for
its claimant is owed twice for a while. Who may use a GPU is `need`'s question, which one is
`score`'s.
"""

from dataclasses import dataclass
from typing import Final

from sojourn_operator.plan.state import Node

WHOLE: Final = 1_000_000
"""A whole GPU's time in parts; a millionth is finer than any share in thousandths."""


@dataclass(frozen=True, slots=True)
class Take:
    """What one session takes of one node; `gpus` holds (index of the GPU, slices, parts of its
    time).
    """

    node: str
    gpus: tuple[tuple[int, int, int], ...]
    cpu_milli: int
    memory_bytes: int


class Room:
    """The mutable remains of `node`. `version` grows with every change, so that caches know."""

    __slots__ = (
        "cpu",
        "groups",
        "left",
        "memory",
        "node",
        "parts",
        "pods",
        "slices",
        "usable",
        "version",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.usable = node.schedulable and node.ready and not node.draining
        self.cpu = node.cpu_milli
        self.memory = node.memory_bytes
        self.pods = node.pods
        self.slices = [gpu.slices if gpu.healthy else 0 for gpu in node.gpus]
        self.parts = [WHOLE if gpu.healthy else 0 for gpu in node.gpus]
        self.left = [0] * len(node.gpus)
        self.groups = link_groups(node)
        self.version = 0
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
        twin.cpu, twin.memory, twin.pods = self.cpu, self.memory, self.pods
        twin.slices, twin.parts, twin.left = self.slices[:], self.parts[:], self.left[:]
        twin.version = self.version
        return twin

    def _add(self, what: Take, sign: int) -> None:
        self.cpu += sign * what.cpu_milli
        self.memory += sign * what.memory_bytes
        self.pods += sign
        self.version += 1
        for index, slices, parts in what.gpus:
            self.slices[index] += sign * slices
            self.parts[index] += sign * parts
            self._measure(index)

    def _measure(self, index: int) -> None:
        """`left` is what remains of a GPU in thousandths, by whichever of slices and time is
        scarcer.
        """
        time = self.parts[index] // 1000
        total = self.node.gpus[index].slices
        memory = self.slices[index] * 1000 // total if total else time
        self.left[index] = max(min(time, memory), 0)


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
