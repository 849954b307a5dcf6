"""What was seen of the cluster, typed: fed by watches, by relists and by our own writes.

The answer of a write goes in here at once, so the next look sees it (an assume-cache for free). Of
two versions of one object the later counts, whichever way it came; what was deleted stays gone.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sojourn_api import parse
from sojourn_api.names import LABEL_SESSION
from sojourn_api.objects import GpuNode, Model, Session, Snapshot, Tenant, Tier
from sojourn_api.reader import Invalid

from sojourn_operator import kinds, metrics
from sojourn_operator.act import api
from sojourn_operator.act.pods import template_problem
from sojourn_operator.seen.budget import Budget, parse_budget
from sojourn_operator.seen.node import Node, parse_node
from sojourn_operator.seen.pod import Pod, parse_pod

T = TypeVar("T")
Raw = Mapping[str, Any]

TOMBSTONES: Final = 2048
"""Deleted objects remembered, so that an answer that comes late does not revive one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """A session, and what is wrong with its spec or its pod template (empty: nothing)."""

    session: Session
    problem: str = ""
    template_problem: str = ""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    value: T | None
    uid: str
    version: int


class Table(Generic[T]):
    """All objects of a kind by "namespace/name"; one that cannot be parsed counts as absent."""

    def __init__(
        self,
        kind: kinds.Kind,
        parser: Callable[[Raw], T],
        *,
        label_selector: str = "",
        wake: Callable[[], None],
    ) -> None:
        self.kind = kind
        self.label_selector = label_selector
        self._parser = parser
        self._wake = wake
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry[T]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._heard = 0
        self._owed_at: int | None = None

    def unheard(self) -> bool:
        """Whether a list had what the watch should have told, and the watch has not spoken since.

        Of a kind without objects nothing can be said: its watch has nothing to tell.
        """
        return bool(self._entries) and self._owed_at == self._heard

    def heard(self) -> None:
        """The watch of this kind spoke."""
        self._heard += 1

    def values(self) -> dict[str, T]:
        """A copy, which stays as it is while one works with it."""
        with self._lock:
            entries = self._entries.items()
            return {key: entry.value for key, entry in entries if entry.value is not None}

    def unreadable(self) -> frozenset[str]:
        """Keys of objects that are there and cannot be parsed."""
        with self._lock:
            return frozenset(key for key, entry in self._entries.items() if entry.value is None)

    def get(self, key: str) -> T | None:
        with self._lock:
            entry = self._entries.get(key)
        return entry.value if entry else None

    def offer(self, raw: Raw) -> bool:
        """A version of an object; True if it was news."""
        meta = raw["metadata"]
        key = _key(meta)
        uid, version = meta["uid"], int(meta["resourceVersion"])
        if self._is_old(key, uid, version):
            return False
        value = self._parsed(raw, key)  # not under the lock, which many threads want
        with self._lock:
            if self._is_old(key, uid, version):
                return False
            self._entries[key] = _Entry(value, uid, version)
        self._wake()
        return True

    def _is_old(self, key: str, uid: str, version: int) -> bool:
        old = self._entries.get(key)
        return uid in self._gone or bool(old and old.uid == uid and old.version >= version)

    def drop(self, raw: Raw) -> bool:
        """An object that was deleted; a later one of the same name stays."""
        meta = raw["metadata"]
        return self._drop(_key(meta), meta["uid"])

    def replace(self, raws: Iterable[Raw], *, version: int) -> int:
        """The whole list as of `version`: what it lacks is gone. How much of it was news."""
        heard, news = self._heard, 0
        present: set[str] = set()
        for raw in raws:
            present.add(raw["metadata"]["uid"])
            news += self.offer(raw)
        with self._lock:
            entries = list(self._entries.items())
        for key, entry in entries:
            if entry.uid not in present and entry.version <= version:
                news += self._drop(key, entry.uid)
        if news:
            self._owed_at = heard
        return news

    def forget(self, key: str, *, uid: str) -> bool:
        """An object that is known to be gone."""
        return self._drop(key, uid)

    def _drop(self, key: str, uid: str) -> bool:
        with self._lock:
            self._gone[uid] = None
            if len(self._gone) > TOMBSTONES:
                self._gone.popitem(last=False)
            entry = self._entries.get(key)
            if entry is None or entry.uid != uid:
                return False
            del self._entries[key]
        self._wake()
        return True

    def _parsed(self, raw: Raw, key: str) -> T | None:
        try:
            return self._parser(raw)
        except Invalid as error:
            log.error("%s %s cannot be used: %s", self.kind.name, key, error)  # noqa: TRY400
        except Exception:
            # A fault of ours that one object brings out: it alone counts as absent.
            log.exception("%s %s cannot be used", self.kind.name, key)
        metrics.ERRORS.labels("parse").inc()
        return None


class Cache:
    """The tables of all kinds that the operator looks at."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.synced = threading.Event()
        self.sessions = Table(kinds.SESSIONS, _parse_session, wake=wake)
        self.models: Table[Model] = Table(kinds.MODELS, parse.parse_model, wake=wake)
        self.tiers: Table[Tier] = Table(kinds.TIERS, parse.parse_tier, wake=wake)
        self.tenants: Table[Tenant] = Table(kinds.TENANTS, parse.parse_tenant, wake=wake)
        self.gpu_nodes: Table[GpuNode] = Table(kinds.GPU_NODES, parse.parse_gpu_node, wake=wake)
        self.snapshots: Table[Snapshot] = Table(kinds.SNAPSHOTS, parse.parse_snapshot, wake=wake)
        self.nodes: Table[Node] = Table(kinds.NODES, parse_node, wake=wake)
        self.pods: Table[Pod] = Table(
            kinds.PODS, parse_pod, label_selector=LABEL_SESSION, wake=wake
        )
        self.budgets: Table[Budget] = Table(kinds.BUDGETS, parse_budget, wake=wake)

    def tables(self) -> tuple[Table[Any], ...]:
        return (
            self.nodes,
            self.gpu_nodes,
            self.tiers,
            self.tenants,
            self.models,
            self.snapshots,
            self.budgets,
            self.pods,
            self.sessions,
        )

    def unheard(self) -> list[str]:
        """Kinds whose watches owe us news."""
        return [table.kind.plural for table in self.tables() if table.unheard()]

    def relist(self, client: api.Api) -> None:
        """Read everything anew and correct what the watches missed."""
        first = not self.synced.is_set()
        for table in self.tables():
            raws, version = client.scan(table.kind, label_selector=table.label_selector)
            news = table.replace(raws, version=version)
            if news and not first:
                log.warning("a relist corrected %d objects of kind %s", news, table.kind.name)
                metrics.LOST_EVENTS.labels(table.kind.plural).inc(news)
        self.synced.set()


def _key(meta: Raw) -> str:
    namespace = meta.get("namespace", "")
    return f"{namespace}/{meta['name']}" if namespace else str(meta["name"])


def _parse_session(raw: Raw) -> Seen:
    """With a spec that cannot be read the status still can: it says what the session holds."""
    try:
        session = parse.parse_session(raw)
        problem = template_problem(session.spec.template)
    except Exception as error:
        if isinstance(error, Invalid) and not error.path.startswith("spec"):
            raise
        spec = {"model": "unreadable", "tier": "unreadable"}
        return Seen(parse.parse_session({**raw, "spec": spec}), problem=str(error))
    return Seen(session, template_problem=problem)
