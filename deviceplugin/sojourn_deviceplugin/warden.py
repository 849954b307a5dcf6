"""Sees who takes more than was granted, in memory or under a higher flag, and says so.

Looks once a round at pages and processes; what stands against whom is `offenders`', what counts as
an offence `conduct`'s.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sojourn_api import names
from sojourn_api.objects import Offender

from sojourn_deviceplugin import conduct
from sojourn_deviceplugin.attribution import Use
from sojourn_deviceplugin.core import Node
from sojourn_deviceplugin.ledger import Grant
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.news import Tell
from sojourn_deviceplugin.offenders import Book, Charge
from sojourn_deviceplugin.reports import Reports

log = logging.getLogger(__name__)

MIB: Final = 1024**2
NAMED: Final = 4
"""Processes that a message names, the largest first."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """Work is there, and the number of steps stays."""

    steps: int
    since_ns: int


class Warden:
    """For one thread: `look` in each round."""

    def __init__(self, node: Node, reports: Reports, metrics: Metrics, tell: Tell) -> None:
        self._node = node
        self._reports = reports
        self._metrics = metrics
        self._tell = tell
        self._book = Book(node.config.offenders)
        self._pages: dict[int, dict[str, conduct.Seen]] = {}
        self._rises: dict[tuple[int, str], tuple[int, int]] = {}
        """By grant: the flag's number, and when we first saw it."""
        self._steps: dict[tuple[int, str], int] = {}
        """Begun under higher flags, in all."""
        self._waits: dict[tuple[int, str], _Wait] = {}

    def look(self) -> tuple[Offender, ...]:
        """Tell what is new; returns what stands."""
        now = time.monotonic_ns()
        uses = self._reports.uses()
        grants = {grant.key: grant for grant in self._node.snapshot()[2]}
        self._book.forget(grants.values())
        self._steps = {key: steps for key, steps in self._steps.items() if key in grants}
        self._rises = {key: rise for key, rise in self._rises.items() if key in grants}
        charges = [*self._memory(uses), *self._conduct(uses, grants, now)]
        for charge in self._book.look(charges, now_ns=now):
            log.warning("offence", extra={"reason": charge.reason, "detail": charge.message})
            self._tell(reason=charge.reason, message=charge.message, warning=True)
        standing = self._book.standing()
        self._metrics.offenders(standing)
        return standing

    def _memory(self, uses: list[Use]) -> Iterator[Charge]:
        over = [use for use in uses if use.bytes > use.granted]
        self._metrics.overusing(len(over))
        for use in over:
            surplus = use.bytes - use.granted
            largest = sorted(use.processes, key=lambda process: -process.bytes)[:NAMED]
            who = ", ".join(f"{p.pid} {p.name}".strip() for p in largest)
            text = (
                f"gpu-{use.grant.ordinal}: {_pod(use.grant)} uses {use.bytes // MIB} MiB, "
                f"{-(-surplus // MIB)} MiB more than granted (processes {who})"
            )
            yield Charge(use.grant, use.uid, names.OVER_MEMORY, surplus, text)

    def _conduct(
        self, uses: list[Use], grants: dict[tuple[int, str], Grant], now: int
    ) -> Iterator[Charge]:
        busy = {use.grant.key: use.sm_percent for use in uses}
        pages = {
            ordinal: {
                slot: replace(
                    seen,
                    busy_percent=busy.get((ordinal, slot), 0),
                    stood_ns=self._stood(ordinal, slot, seen, now),
                )
                for slot, seen in slots.items()
            }
            for ordinal, slots in self._reports.pages().items()
        }
        limits = self._node.limits
        for ordinal, after in pages.items():
            before = self._pages.get(ordinal, {})
            for offence in conduct.offences(before, after, now_ns=now, limits=limits):
                grant = grants.get((ordinal, offence.slot))
                if grant is not None:
                    yield self._charge(grant, offence, grants.get((ordinal, offence.under)))
        self._pages = pages
        self._waits = dict(self._waiting(now))

    def _waiting(self, now: int) -> Iterator[tuple[tuple[int, str], "_Wait"]]:
        """Grants that have work and stand still, since the look that first saw them so."""
        for ordinal, slots in self._pages.items():
            for slot, seen in slots.items():
                page, known = seen.page, self._waits.get((ordinal, slot))
                if not page.wants or not page.locked or page.steps != page.steps_done:
                    continue
                if known is not None and known.steps == page.steps:
                    yield (ordinal, slot), known
                else:
                    yield (ordinal, slot), _Wait(page.steps, now)

    def waited(self, grant: Grant) -> float:
        """Seconds that a grant has had work and made no step, 0 if it has none or goes on."""
        wait = self._waits.get(grant.key)
        return (time.monotonic_ns() - wait.since_ns) / 1e9 if wait else 0.0

    def _stood(self, ordinal: int, slot: str, seen: conduct.Seen, now: int) -> int:
        flag, since = self._rises.get((ordinal, slot), (-1, now))
        if flag != seen.page.flag:
            since = now
            self._rises[ordinal, slot] = (seen.page.flag, now)
        return now - since

    def _charge(self, grant: Grant, offence: conduct.Offence, under: Grant | None) -> Charge:
        self._metrics.offended(grant.ordinal, offence.steps)
        key = grant.key
        self._steps[key] = self._steps.get(key, 0) + offence.steps
        what = f"computed {self._steps[key]} steps"
        if offence.busy_percent:
            what = f"used {offence.busy_percent} % of the SMs"
        whose = f" of {_pod(under)}" if under else ""
        text = f"gpu-{grant.ordinal}: {_pod(grant)} {what} under the higher flag{whose}"
        size = max(self._steps[key], offence.busy_percent)
        return Charge(grant, self._reports.uid(grant), names.YIELD_IGNORED, size, text)


def _pod(grant: Grant) -> str:
    holder = grant.holder
    return f"{holder.namespace}/{holder.pod}" if holder else f"slot {grant.slot}"
