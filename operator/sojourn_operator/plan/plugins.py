"""Plugins around the fixed core: `pre` ones order the claimants of a band, `post` ones trim the
plan.

A plugin declares the version of this interface that it was written for; an older signature is
adapted, an unknown one refused by name. What plugins return is checked: they can neither add nor
lose anyone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sojourn_operator.plan.actions import Action, Pause, Plan
from sojourn_operator.plan.state import Session, State

API_VERSION: Final = 2
OLDEST_VERSION: Final = 1
"""Version 1 had no state: pre plugins got the sessions alone, post plugins the actions alone."""
GROUP_PRE: Final = "sojourn.plan.pre"
GROUP_POST: Final = "sojourn.plan.post"
GROUP_GENERATION: Final = "sojourn.plan.generation"
"""Entry points under which distributions offer plugins, and a generation of the whole plan."""

Order = Callable[[State, Sequence[Session]], Sequence[Session]]
Trim = Callable[[State, Sequence[Action]], Sequence[Action]]


class PluginError(Exception):
    """A plugin cannot be used, or did what plugins may not do."""


@dataclass(frozen=True, slots=True)
class Plugins:
    """Adapted plugins, in the order of their names."""

    pre: tuple[tuple[str, Order], ...] = ()
    post: tuple[tuple[str, Trim], ...] = ()

    def order(self, state: State, sessions: Sequence[Session]) -> list[Session]:
        """The claimants of one band, as the plugins would have them served."""
        found = list(sessions)
        for name, plugin in self.pre:
            ordered = list(plugin(state, tuple(found)))
            if Counter(one.key for one in ordered) != Counter(one.key for one in found):
                raise PluginError(f"plugin {name} added or lost sessions; it may only order them")
            found = ordered
        return found

    def trim(self, state: State, plan: Plan) -> Plan:
        """The plan, less what the plugins hold back."""
        actions: Sequence[Action] = plan.actions
        for name, plugin in self.post:
            kept = list(plugin(state, tuple(actions)))
            if Counter(map(repr, kept)) - Counter(map(repr, actions)):
                raise PluginError(f"plugin {name} added actions; it may only hold some back")
            actions = kept
        return replace(plan, actions=tuple(_without_orphans(actions)))


def _without_orphans(actions: Sequence[Action]) -> list[Action]:
    """Nobody is paused for a claimant whose nomination was held back."""
    claimants = {one.session for one in actions if not isinstance(one, Pause)}
    return [
        one for one in actions if not isinstance(one, Pause) or not one.by or one.by in claimants
    ]


def adapt(name: str, plugin: Any, *, kind: str) -> Any:
    """A plugin's function in today's signature; raises PluginError for a version of no use."""
    version = getattr(plugin, "api_version", None)
    if not isinstance(version, int):
        raise PluginError(f"plugin {name} declares no api_version; this operator has {API_VERSION}")
    if version > API_VERSION or version < OLDEST_VERSION:
        raise PluginError(
            f"plugin {name} is written for version {version} of the {kind} interface; "
            f"this operator knows {OLDEST_VERSION} to {API_VERSION}"
        )
    if version == API_VERSION:
        return plugin
    return lambda _state, items: plugin(items)
