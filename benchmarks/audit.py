"""What an API server's audit log says: who wrote what, when, how it was answered, how long it took.

The log is the one witness that neither the operator nor the benchmark can flatter. It is read on
from where the last look ended, rotated files first.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import quantiles

READS = ('"verb":"get"', '"verb":"list"', '"verb":"watch"')


@dataclass(frozen=True, slots=True)
class Call:
    """One finished request. Times are seconds since 1970."""

    begun: float
    done: float
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    agent: str

    @property
    def ok(self) -> bool:
        return 200 <= self.code <= 299

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def kind_of_write(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource}"


@dataclass
class Audit:
    """The writes so far; `look` reads what is new."""

    path: Path
    calls: list[Call] = field(default_factory=list)
    _inode: int = 0
    _offset: int = 0

    def look(self) -> list[Call]:
        """Calls that finished since the last look."""
        seen = len(self.calls)
        for lines in self._fresh():
            self.calls += filter(None, map(_call, lines))
        return self.calls[seen:]

    def _fresh(self) -> Iterator[list[str]]:
        rotated = self.path.stat().st_ino != self._inode
        if rotated and self._inode:
            old = max(self.path.parent.glob(f"{self.path.stem}-*"))
            yield self._rest(old)
            self._offset = 0
        self._inode = self.path.stat().st_ino
        yield self._rest(self.path)

    def _rest(self, path: Path) -> list[str]:
        with path.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode().splitlines()

    def of(self, agent: str, *, since: float = 0.0, until: float = float("inf")) -> list[Call]:
        """The writes of one program that were begun in this time."""
        return [
            call
            for call in self.calls
            if agent in call.agent and since <= call.begun < until and call.resource != "leases"
        ]


def _call(line: str) -> Call | None:
    if any(verb in line for verb in READS):
        return None
    entry = json.loads(line)
    about = entry.get("objectRef")
    if about is None:
        return None
    return Call(
        begun=_seconds(entry["requestReceivedTimestamp"]),
        done=_seconds(entry["stageTimestamp"]),
        verb=entry["verb"],
        resource=about.get("resource", ""),
        subresource=about.get("subresource", ""),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=entry.get("responseStatus", {}).get("code", 0),
        agent=entry.get("userAgent", ""),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def latency(calls: Iterable[Call]) -> dict[str, float]:
    """Milliseconds from a request's arrival to its answer, as the API server has them."""
    times = [(call.done - call.begun) * 1e3 for call in calls]
    if len(times) < 2:
        return {}
    cuts = quantiles(times, n=100)
    return {"p50Ms": round(cuts[49], 1), "p99Ms": round(cuts[98], 1), "maxMs": round(max(times), 1)}


def counted(calls: Iterable[Call], by: Callable[[Call], str]) -> dict[str, int]:
    """How many calls of each kind, the most frequent first."""
    return dict(Counter(map(by, calls)).most_common())
