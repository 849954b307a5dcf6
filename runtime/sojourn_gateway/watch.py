"""Keeps the directory as the API server has it, and wakes sessions that sleep.

List, then watch; a watch that breaks is taken up where it was, one that is too old lists again.
"""

import asyncio
import logging
import random
import time
from typing import Any, Final

from sojourn_api import names

from sojourn_gateway.directory import Directory
from sojourn_gateway.kube import Kube, KubeError
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.session import Session, from_object, wake_text

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 30.0
"""Between two tries while the API server is away."""


class Watch:
    """A task that runs as long as the gateway."""

    def __init__(self, kube: Kube, directory: Directory, metrics: Metrics) -> None:
        self._kube = kube
        self._directory = directory
        self._metrics = metrics
        self._version = ""
        self._failures = 0
        self._waking: dict[str, str] = {}
        """By session, the pause that it was woken from, or is being."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._follow()
            except KubeError as error:
                self._metrics.source_errors.inc()
                self._failures += 1
                if error.gone:
                    self._version = ""
                # also after a refusal: rights may come later than the pod
                log.warning("%s; trying again", error)
            longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2**self._failures)
            await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - no secret

    async def _follow(self) -> None:
        """Until the server ends the watch, which it does from time to time."""
        if not self._version:
            items, version = await self._kube.list()
            self._directory.replace(from_object(raw) for raw in items)
            self._version = version
        async for kind, raw in self._kube.watch(self._version):
            self._failures = 0
            self._version = raw["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._see(raw, gone=kind == "DELETED")

    def _see(self, raw: dict[str, Any], *, gone: bool) -> None:
        session = from_object(raw)
        if gone:
            self._directory.drop(session.key)
            self._waking.pop(session.key, None)
        else:
            self._directory.put(session)

    # -- waking --

    def wake(self, session: Session) -> None:
        """Ask the operator to bring it back; once for each pause, however many requests come."""
        if self._waking.get(session.key) == session.asleep_since:
            return
        self._waking[session.key] = session.asleep_since
        task = asyncio.get_running_loop().create_task(self._wake(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake(self, session: Session) -> None:
        text = wake_text(session, now=time.time())
        try:
            await self._kube.annotate(session.key, {names.ANNOTATION_WAKE: text})
        except KubeError as error:
            log.warning("cannot wake %s: %s", session.key, error)
            self._waking.pop(session.key, None)  # the next look of a held request tries again
            return
        self._metrics.wakes.inc()
        log.info("woke %s, which was idle since %s", session.key, session.asleep_since)
