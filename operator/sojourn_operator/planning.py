"""The plan as the loop uses it: plugins of other distributions, a built-in generation to fall back
to, and the memory of the mix that is packed for. What is decided is all in `plan`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from sojourn_operator import metrics, plan
from sojourn_operator.plan.board import inside
from sojourn_operator.plan.generations import SLOW_SECONDS, Generation, Generations
from sojourn_operator.plan.mix import Flow, follow
from sojourn_operator.plan.plugins import (
    API_VERSION,
    GROUP_GENERATION,
    GROUP_POST,
    GROUP_PRE,
    PluginError,
    Plugins,
    adapt,
)
from sojourn_operator.plan.state import Mix

log = logging.getLogger(__name__)

WITH_PLUGINS: Final = "with-plugins"
BUILT_IN: Final = "built-in"
STARTS: Final = 512
"""Of one plan: about as many as a quick API server takes in the time that one pass may write. What
is planned beyond is thought over again in the next pass, and thousands would wait meanwhile.
"""


class Planning:
    """Plans by the generation that works, and tells when that is another one than before."""

    def __init__(
        self,
        plugins: Plugins | None = None,
        *,
        offered: Generation | None = None,
        slow_seconds: float = SLOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        used = load() if plugins is None else plugins
        new = Generation(WITH_PLUGINS, plan.Planner(plugins=used, most=STARTS))
        old = Generation(BUILT_IN, plan.Planner(most=STARTS))
        own = Generations(new, old, clock=clock, slow_seconds=slow_seconds)
        self._chain = [own]
        if offered is not None:
            core = Generation(WITH_PLUGINS, own)
            first = Generations(offered, core, clock=clock, slow_seconds=slow_seconds)
            self._chain.insert(0, first)
        self._counted = [0] * len(self._chain)
        self._mix = Mix()
        self._flow = Flow()
        self._told = ""

    def mix(self, requests: Iterable[plan.Request]) -> Mix:
        """What to pack for: it trails the requests of today, and whether sessions come and go."""
        self._mix = follow(self._mix, requests, passing=self._flow.passing)
        return self._mix

    def plan(self, state: plan.State) -> plan.Plan:
        self._flow.look(inside(state.sessions))
        with metrics.DECISION_SECONDS.time():
            return self._chain[0].plan(state)

    def news(self) -> str:
        """Why another generation decides since the last call; empty if none does."""
        active, why = self._standing()
        metrics.FALLBACK.set(bool(why))
        for at, one in enumerate(self._chain):
            if one.fallbacks > self._counted[at]:
                metrics.FALLBACKS.labels(one.cause).inc(one.fallbacks - self._counted[at])
                self._counted[at] = one.fallbacks
        if why == self._told:
            return ""
        self._told = why
        return f"{active} decides now: {why or 'it works again'}"

    def _standing(self) -> tuple[str, str]:
        """Who decides, and why none of those before it does."""
        active, why = "", list[str]()
        for one in self._chain:
            active = one.active
            if not one.reason:
                break
            why.append(one.reason)
        return active, "; ".join(why)


def postponed(state: plan.State, waits: Mapping[str, float]) -> plan.State:
    """Sessions that cannot be written yet (seconds left by key) start later, as after a failure.

    They keep the room that is being freed for them, and others have their turn.
    """
    late = {
        key: replace(session, not_before=max(session.not_before, state.now + waits[key]))
        for key in waits
        if (session := state.sessions.get(key))
    }
    return replace(state, sessions={**state.sessions, **late}) if late else state


def load(find: Callable[..., Iterable[EntryPoint]] = entry_points) -> Plugins:
    """The plugins that installed distributions offer; one of no use is left out, and said."""
    return Plugins(pre=_loaded(find, GROUP_PRE), post=_loaded(find, GROUP_POST))


def offered(find: Callable[..., Iterable[EntryPoint]] = entry_points) -> Generation | None:
    """The generation of the plan that an installed distribution offers; the first by name.

    One for another version of the interface is not even made: the built-in one decides instead.
    """
    found = sorted(find(group=GROUP_GENERATION), key=lambda one: one.name)
    for entry in found[1:]:
        log.error("generation %s is left out: %s comes first", entry.name, found[0].name)
    if not found:
        return None
    entry = found[0]
    try:
        kind = entry.load()
        version = kind.api_version
        plans = kind() if version == API_VERSION else plan.Planner()
    except Exception as error:
        log.exception("generation %s is left out: %s", entry.name, error)  # noqa: TRY401
        return None
    return Generation(entry.name, plans, version)


def _loaded(find: Callable[..., Iterable[EntryPoint]], group: str) -> tuple[tuple[str, Any], ...]:
    found: list[tuple[str, Any]] = []
    for entry in sorted(find(group=group), key=lambda one: one.name):
        try:
            found.append((entry.name, adapt(entry.name, entry.load(), kind=group)))
        except (PluginError, ImportError, AttributeError) as error:
            log.error("plugin %s is left out: %s", entry.name, error)  # noqa: TRY400 - its own fault
        else:
            log.info("plugin %s of %s is used", entry.name, group)
    return tuple(found)
