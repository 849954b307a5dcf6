"""The best node for a request, kept up to date: one row of scores per kind of request.

Only nodes that changed since a row was last asked are rated again, and a heap gives the best, so
that a decision costs what has changed and not the size of the cluster. Answers equal rating all
nodes anew. Nodes of equal score rank by a hash of their name: one fixed order that no naming
habit can skew.
"""

import heapq
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from sojourn_operator.plan.need import Need, need_on
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.score import Policy
from sojourn_operator.plan.state import Node, Request

TIE_BITS: Final = 40


def tie_of(name: str) -> int:
    """Where a node stands among equals."""
    return int.from_bytes(blake2b(name.encode(), digest_size=TIE_BITS // 8).digest())


class Row:
    """All nodes rated for one request over one number of shards. Entries are score and tie in
    one integer.
    """

    __slots__ = ("entries", "heap", "needs", "request", "seen", "shards")

    def __init__(self, request: Request, shards: int) -> None:
        self.request = request
        self.shards = shards
        self.needs: dict[str, tuple[Node, Need | None]] = {}
        self.entries: dict[str, int] = {}
        self.heap: list[int] = []
        self.seen = -1

    def need(self, node: Node) -> Need | None:
        """The request's need on a node, remembered while the node object stays."""
        known = self.needs.get(node.name)
        if known is not None and known[0] is node:
            return known[1]
        need = need_on(node, self.request, shards=self.shards)
        self.needs[node.name] = (node, need)
        return need


class Index:
    """Rows by request; told of every change of a room through `changed`."""

    def __init__(self, policy: Policy, rooms: dict[str, Room]) -> None:
        self.policy = policy
        self._rooms = rooms
        self._rows: dict[tuple[Request, int], Row] = {}
        self._log: list[str] = []
        self._start = 0
        self._names: dict[int, str] = {}
        self._ties: dict[str, int] = {}

    def changed(self, name: str) -> None:
        """A node has come, gone or changed in any way."""
        self._log.append(name)
        if len(self._log) > 64 * (len(self._rooms) + 64):
            self._start += len(self._log)
            self._log.clear()

    def forget(self) -> None:
        """Drop all rows: the policy rates differently from now on."""
        self._rows.clear()

    def best(
        self, request: Request, shards: int, *, accept: Callable[[str], bool] | None = None
    ) -> tuple[str, Need] | None:
        """The best node that fits and is accepted, with the need there."""
        row = self._row(request, shards)
        heap, entries = row.heap, row.entries
        refused: list[int] = []
        found: str | None = None
        while heap:
            entry = -heap[0]
            name = self._names[entry & ((1 << TIE_BITS) - 1)]
            if entries.get(name) != entry:
                heapq.heappop(heap)
            elif accept is None or accept(name):
                found = name
                break
            else:
                refused.append(heapq.heappop(heap))
        for item in refused:
            heapq.heappush(heap, item)
        if found is None:
            return None
        need = row.need(self._rooms[found].node)
        return None if need is None else (found, need)

    def need(self, node: Node, request: Request, shards: int) -> Need | None:
        """The need of a request on a node."""
        return self._rows.setdefault((request, shards), Row(request, shards)).need(node)

    def _row(self, request: Request, shards: int) -> Row:
        row = self._rows.get((request, shards))
        if row is None:
            row = self._rows[request, shards] = Row(request, shards)
        end = self._start + len(self._log)
        if row.seen == end:
            return row
        if row.seen < self._start or len(row.heap) > 4 * (len(self._rooms) + 64):
            self._rebuild(row)
        else:
            for name in set(self._log[row.seen - self._start :]):
                entry = self._rate(row, name)
                if entry is not None:
                    heapq.heappush(row.heap, -entry)
        row.seen = end
        return row

    def _rebuild(self, row: Row) -> None:
        row.entries.clear()
        row.heap = [-entry for name in self._rooms if (entry := self._rate(row, name)) is not None]
        heapq.heapify(row.heap)

    def _rate(self, row: Row, name: str) -> int | None:
        """Rate one node for a row; the new entry, or None if it cannot serve or nothing changed."""
        room = self._rooms.get(name)
        if room is None or not room.usable:
            row.entries.pop(name, None)
            row.needs.pop(name, None)
            return None
        need = row.need(room.node)
        score = None if need is None else self.policy.score(room, need)
        if score is None:
            row.entries.pop(name, None)
            return None
        entry = (score << TIE_BITS) | self._tie(name)
        if row.entries.get(name) == entry:
            return None
        row.entries[name] = entry
        return entry

    def _tie(self, name: str) -> int:
        tie = self._ties.get(name)
        if tie is None:
            tie = tie_of(name)
            while self._names.get(tie, name) != name:
                tie = (tie + 1) & ((1 << TIE_BITS) - 1)
            self._ties[name] = tie
            self._names[tie] = name
        return tie
