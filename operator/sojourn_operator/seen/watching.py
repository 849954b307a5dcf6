"""kopf as it is used here: one watch for each table, each event into its table, and nothing else.

No finalizers, no annotations, no events of kopf's own, and none of its work on each object that
only handlers of changes need: at thousands of objects that costs more than reading them.
"""

import dataclasses
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import kopf
from kopf._cogs.clients import watching as streams
from kopf._core.reactor import queueing
from sojourn_api.access import in_cluster

from sojourn_operator import metrics
from sojourn_operator.seen.cache import Cache, Table

PAGE: Final = 500
"""Objects of a kind that kopf holds at once while it lists."""

WATCHER: Final = frozenset(
    {
        "namespace",
        "settings",
        "resource",
        "processor",
        "operator_paused",
        "operator_indexed",
        "resource_indexed",
    }
)
"""Parameters of kopf's watcher, of the versions that pyproject.toml admits."""

log = logging.getLogger(__name__)
Watcher = Callable[..., Awaitable[None]]
Stream = Callable[..., AsyncIterator[Any]]


class KopfError(Exception):
    """This version of kopf is another inside than the ones that Sojourn knows."""


class _NoDiff(kopf.DiffBaseStorage):  # type: ignore[misc]
    """kopf compares nothing: by default it copies each object deeply for it."""

    def build(self, **_: object) -> Any:
        return {}

    def fetch(self, **_: object) -> Any:
        return None

    def store(self, **_: object) -> None:
        """Nothing is kept on objects."""


class _NoProgress(kopf.ProgressStorage):  # type: ignore[misc]
    """There are no handlers whose progress could be kept."""

    def fetch(self, **_: object) -> Any:
        return None

    def store(self, **_: object) -> None:
        """Nothing is kept on objects."""

    def purge(self, **_: object) -> None:
        """Nothing is kept on objects."""

    def touch(self, **_: object) -> None:
        """Nothing is kept on objects."""

    def clear(self, *, essence: Any) -> Any:
        return essence


def registry(cache: Cache) -> kopf.OperatorRegistry:
    """One watch for each table, each event into its table."""
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(_login)
    for table in cache.tables():
        kind = table.kind
        kopf.on.event(kind.group, kind.version, kind.plural, registry=found, id=kind.plural)(
            _feed(table)
        )
    return found


def settings(cache: Cache) -> kopf.OperatorSettings:
    """Watches only: nothing is written, and what is not ours is filtered by the API server."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.process.ultimate_exiting_timeout = None
    found.persistence.diffbase_storage = _NoDiff()
    found.persistence.progress_storage = _NoProgress()
    found.watching.chunk_size = PAGE
    for table in cache.tables():
        if table.label_selector:
            found.watching.label_selectors[table.kind.plural] = table.label_selector
    return found


def bypass_queues(cache: Cache) -> None:
    """Let kopf hand each event of a table to it at once; for the whole process.

    kopf gives each object a queue, a task and a memory, and each event a search for handlers. Only
    handlers that wait need them; here they took half of the operator's time while thousands of
    sessions started. kopf has no setting for it, hence its inside: `queueing.watcher` is what it
    starts for each kind, `infinite_watch` the stream that lists, watches and reconnects. KopfError
    if they are not those of the versions that pyproject.toml admits.
    """
    tables = {(table.kind.group, table.kind.plural): table for table in cache.tables()}
    check_known(queueing.watcher)
    queueing.watcher = without_queues(tables, usual=queueing.watcher)


def check_known(watcher: Watcher) -> None:
    """KopfError if what kopf starts for each kind is called in another way."""
    found = inspect.signature(watcher).parameters.keys()
    if found != WATCHER:
        differ = ", ".join(sorted(found ^ WATCHER))
        raise KopfError(
            f"kopf {kopf.__version__} starts its watches in another way ({differ}); "
            "install the version that Sojourn asks for: pip install 'sojourn[operator]'"
        )


def without_queues(
    tables: Mapping[tuple[str, str], Table[Any]],
    *,
    usual: Watcher,
    stream: Stream = streams.infinite_watch,
) -> Watcher:
    """A watcher that hands a table its events as `stream` gives them; other kinds go as `usual`."""

    @functools.wraps(usual)
    async def watcher(*, resource: Any, **given: Any) -> None:
        table = tables.get((resource.group, resource.plural))
        if table is None:  # what kopf itself looks at: which kinds and namespaces there are
            await usual(resource=resource, **given)
            return
        known = ("settings", "namespace", "operator_paused")
        passed = {name: given[name] for name in known if name in given}
        async for event in stream(resource=resource, **passed):
            if not isinstance(event, streams.Bookmark) and event["type"] != "BOOKMARK":
                take(table, event)

    return watcher


def take(table: Table[Any], event: Mapping[str, Any]) -> None:
    """One event into its table; one that cannot be used stops no other."""
    table.heard()
    try:
        if event["type"] == "DELETED":
            table.drop(event["object"])
        else:
            table.offer(event["object"])
    except Exception:
        metrics.ERRORS.labels("watch").inc()
        log.exception("an event of kind %s cannot be used", table.kind.name)


def _feed(table: Table[Any]) -> Any:
    """The handler by which kopf knows that this kind is watched; see `bypass_queues`."""

    async def seen(event: Mapping[str, Any], **_: object) -> None:
        take(table, event)

    return seen


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    inside = kopf.login_with_service_account(**kwargs)
    if inside is None:
        return kopf.login_with_kubeconfig(**kwargs)
    # kopf would ask the cluster's DNS, which the operator must outlive; the kubelet says this.
    return dataclasses.replace(inside, server=in_cluster().url)
