"""Which node and which GPUs suit a request best: the packing policy, as whole numbers.

A score compares nodes for one request only; higher is better. Nothing here knows other nodes.
"""

from sojourn_operator.plan.need import Need
from sojourn_operator.plan.room import Room


class Policy:
    """Best fit: the GPUs that are left with least."""

    def score(self, room: Room, need: Need) -> int | None:
        """How well the node serves the need, None if it cannot."""
        gpus = self.choose(room, need)
        if gpus is None:
            return None
        tightness = 1000 - sum(room.left[index] for index in gpus) // max(len(gpus), 1)
        return 1000 - tightness if need.request.spread else tightness

    def choose(self, room: Room, need: Need) -> tuple[int, ...] | None:
        """The GPUs (indices) that the need would take, None if it does not fit."""
        if room.cpu < need.cpu_milli or room.memory < need.memory_bytes or room.pods < 1:
            return None
        if need.shards == 0:
            return ()
        fitting = [
            index
            for index, parts in enumerate(need.parts)
            if 0 <= parts <= room.parts[index] and need.slices <= room.slices[index]
        ]
        if need.shards == 1:
            if not fitting:
                return None
            order = max if need.request.spread else min
            return (order(fitting, key=lambda index: (room.left[index], index)),)
        return linked(room, fitting, need.shards)


def linked(room: Room, fitting: list[int], shards: int) -> tuple[int, ...] | None:
    """The fullest `shards` GPUs of one link group, from the group that keeps least."""
    best: tuple[int, tuple[int, ...]] | None = None
    for group in room.groups:
        members = [index for index in group if index in fitting]
        if len(members) < shards:
            continue
        members.sort(key=lambda index: (room.left[index], index))
        chosen = tuple(members[:shards])
        kept = sum(room.left[index] for index in group)
        if best is None or kept < best[0]:
            best = (kept, chosen)
    return None if best is None else best[1]
