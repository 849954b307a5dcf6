"""The best node for a request, kept up to date: one row of scores per kind of request.

Only nodes that changed since a row was last asked are rated again, and a heap gives the best, so
that a decision costs what has changed and not the size of the cluster. Answers equal rating all
nodes anew. Nodes of equal score rank by a hash of their name: one fixed order that no naming
habit can skew.
"""

import heapq
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from sojourn_operator.plan.need import GpuNeed, Kinds, Need, Needs, node_refusal
from sojourn_operator.plan.room import Blank, Room
from sojourn_operator.plan.score import Policy
from sojourn_operator.plan.state import Request

TIE_BITS: Final = 40
MOST_ROWS: Final = 4096
"""Kinds of request beyond which all rows are dropped and made anew as they are asked for."""
BACKLOG: Final = 256
"""Changes after which a row is brought up to date unasked: bounds the slowest decision."""


@lru_cache(maxsize=1 << 17)
def tie_of(name: str) -> int:
    """Where a node stands among equals."""
    return int.from_bytes(blake2b(name.encode(), digest_size=TIE_BITS // 8).digest())


class Row:
    """All nodes rated for one request over one number of shards.

    An entry is score and tie in one integer, the lowest is the best: heap and entries share it.
    """

    __slots__ = ("_makers", "_needs", "entries", "heap", "request", "seen", "shards")

    def __init__(self, request: Request, shards: int, makers: Needs) -> None:
        self.request = request
        self.shards = shards
        self.entries: dict[str, int] = {}
        self.heap: list[int] = []
        self.seen = -1
        self._makers = makers
        self._needs: dict[Kinds, Need] = {}

    def need(self, room: Room) -> Need | None:
        """The request's need on a node, None if the node itself is excluded (labels, taints)."""
        node = room.node
        if (self.request.node_selector or node.taints) and node_refusal(node, self.request):
            return None
        need = self._needs.get(room.kinds)
        if need is None:
            need = self._makers.on(room.kinds, self.request, shards=self.shards)
            self._needs[room.kinds] = need
        return need


class Index:
    """Rows by request; told of every change of a room through `changed`."""

    def __init__(self, policy: Policy, rooms: dict[str, Room]) -> None:
        self.policy = policy
        self._rooms = rooms
        self._rows: dict[tuple[Request, int], Row] = {}
        self._makers = Needs()
        self._log: list[str] = []
        self._start = 0
        self._names: dict[int, str] = {}
        self._ties: dict[str, int] = {}
        self._order: list[Row] = []
        self._next = 0

    def changed(self, name: str) -> None:
        """A node has come, gone or changed in any way."""
        self._log.append(name)
        if len(self._log) > 64 * (len(self._rooms) + 64):
            self._start += len(self._log)
            self._log.clear()
        self._tend()

    @property
    def now(self) -> int:
        """A number that grows with every change."""
        return self._start + len(self._log)

    def since(self, seen: int) -> set[str] | None:
        """Nodes that changed after `now` was `seen`, None if that was too long ago to say."""
        return None if seen < self._start else set(self._log[seen - self._start :])

    def forget(self) -> None:
        """Drop all ratings: the policy rates differently from now on."""
        self._rows.clear()
        self._order.clear()
        for room in self._rooms.values():
            room.memo.clear()
            room.idle_cost = None

    def best(
        self, request: Request, shards: int, *, accept: Callable[[str], bool] | None = None
    ) -> tuple[str, Need] | None:
        """The best node that fits and is accepted, with the need there."""
        row = self._row(request, shards)
        heap, entries = row.heap, row.entries
        refused: list[int] = []
        found: str | None = None
        while heap:
            entry = heap[0]
            name = self._names[-entry & ((1 << TIE_BITS) - 1)]
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
        need = row.need(self._rooms[found])
        return None if need is None else (found, need)

    def score(self, request: Request, shards: int, name: str) -> int | None:
        """A node's score as `best` compares it, None where the request does not fit."""
        entry = self._row(request, shards).entries.get(name)
        return None if entry is None else -entry >> TIE_BITS

    def needs(self, request: Request, shards: int) -> Callable[[Room], Need | None]:
        """The need of a request, node by node."""
        return self._of(request, shards).need

    def need(self, room: Room, request: Request, shards: int) -> Need | None:
        """The need of a request on a node."""
        return self._of(request, shards).need(room)

    def _of(self, request: Request, shards: int) -> Row:
        row = self._rows.get((request, shards))
        if row is None:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
                self._makers = Needs()
            row = self._rows[request, shards] = Row(request, shards, self._makers)
        return row

    def _row(self, request: Request, shards: int) -> Row:
        row = self._of(request, shards)
        if row.seen != self.now:
            self._refresh(row)
        return row

    def _refresh(self, row: Row) -> None:
        """Rate what changed since the row was last up to date, or everything."""
        heap = row.heap
        if row.seen < self._start or len(heap) > 4 * (len(self._rooms) + 64):
            row.entries.clear()
            heap.clear()
            self._rate(row, self._rooms)
            heapq.heapify(heap)
        else:
            fresh = len(heap)
            self._rate(row, set(self._log[row.seen - self._start :]))
            if len(heap) - fresh > fresh // 8:
                heapq.heapify(heap)
            else:
                added = heap[fresh:]
                del heap[fresh:]
                for entry in added:
                    heapq.heappush(heap, entry)
        row.seen = self.now

    def _rate(self, row: Row, names: Iterable[str]) -> None:
        """Rate these nodes for a row; appends new entries to its heap, in no order."""
        rooms, ties, entries, heap = self._rooms, self._ties, row.entries, row.heap
        cpu, memory = row.request.cpu_milli, row.request.memory_bytes
        score_of, need_on = self.policy.score, row.need
        alike: dict[tuple[Blank, GpuNeed], int | None] = {}
        for name in names:
            room = rooms.get(name)
            if room is None or not room.usable or room.cpu < cpu or room.memory < memory:
                entries.pop(name, None)
                continue
            need = need_on(room)
            if need is None:
                score = None
            elif room.blank is None:
                score = score_of(room, need)
            elif (key := (room.blank, need.gpu)) in alike:
                score = alike[key]
            else:
                score = alike[key] = score_of(room, need)
            if score is None:
                entries.pop(name, None)
                continue
            entry = -((score << TIE_BITS) | (ties.get(name) or self._tie(name)))
            if entries.get(name) != entry:
                entries[name] = entry
                heap.append(entry)

    def _tend(self) -> None:
        """Bring one row after another up to date that was not asked for long, so that none is
        slow.
        """
        if self._next >= len(self._order):
            self._order, self._next = list(self._rows.values()), 0
            if not self._order:
                return
        row = self._order[self._next]
        self._next += 1
        if row.seen >= self._start and self.now - row.seen > BACKLOG:
            self._refresh(row)

    def _tie(self, name: str) -> int:
        tie = self._ties.get(name)
        if tie is None:
            tie = tie_of(name)
            while self._names.get(tie, name) != name:
                tie = (tie + 1) & ((1 << TIE_BITS) - 1)
            self._ties[name] = tie
            self._names[tie] = name
        return tie
