"""Silence of a device plugin: judged by what was seen, and told so that nobody lies for it."""

import dataclasses

from sojourn_api.names import READY
from sojourn_api.objects import Condition
from sojourn_operator import view
from sojourn_operator.plan import Phase
from sojourn_operator.plan.explain import explain
from sojourn_operator.seen.heartbeats import (
    BLIND_SECONDS,
    LOOK_SECONDS,
    LeaseWatch,
    Renewal,
    renewals,
)
from sojourn_operator.verdicts import gone_verdict

from tests.unit.operator.test_view import gpu_node, node, world
from tests.unit.pretend_session import session

LAST = "2026-01-01T00:00:00Z"
LEASE = {
    "metadata": {"resourceVersion": "7"},
    "spec": {
        "holderIdentity": "node-a",
        "leaseDurationSeconds": 60,
        "renewTime": "2026-01-01T00:00:00.123456Z",
    },
}


def looks(leases: LeaseWatch, versions: list[str], *, begin: float = 0.0) -> list[bool]:
    """One look after another; whether the node counts as silent at each."""
    found = []
    for number, version in enumerate(versions):
        seen = {"node-a": Renewal(version, 60.0, LAST)}
        found.append("node-a" in leases.expired(seen, now=begin + number * LOOK_SECONDS))
    return found


def test_a_lease_says_whose_it_is_and_how_long_it_holds() -> None:
    assert renewals([LEASE]) == {"node-a": Renewal("7", 60.0, LAST)}
    assert renewals([{"metadata": {"resourceVersion": "1"}, "spec": {}}]) == {}


def test_a_plugin_is_silent_when_its_lease_has_run_out_and_back_with_the_next_renewal() -> None:
    assert looks(LeaseWatch(), ["1"] * 7 + ["2"] * 2) == [False] * 6 + [True] + [False] * 2


def test_a_plugin_that_renews_is_never_silent() -> None:
    assert not any(looks(LeaseWatch(), [str(number // 2) for number in range(50)]))


def test_after_a_time_without_looks_all_have_a_whole_term_again() -> None:
    """While the API server was away, the plugins could not renew either."""
    leases = LeaseWatch()
    looks(leases, ["1"] * 3)
    late = 3 * LOOK_SECONDS + BLIND_SECONDS
    assert looks(leases, ["1"] * 7, begin=late) == [False] * 6 + [True]


def test_a_plugin_without_a_lease_is_not_judged() -> None:
    """One of an earlier release writes none."""
    leases = LeaseWatch()
    looks(leases, ["1"])
    assert leases.expired({}, now=1000.0) == {}


def test_the_reason_tells_a_dead_plugin_from_a_dead_node() -> None:
    seen = world(session(), nodes={"node-a": node("node-a")})
    plugin = gone_verdict(seen, "node-a", since=LAST)
    assert (plugin.type, plugin.status, plugin.reason) == (READY, "Unknown", "PluginGone")
    assert LAST in plugin.message
    assert "spec.nodeName=node-a" in plugin.message
    dead = world(session(), nodes={"node-a": node("node-a", ready=False, changed=60.0)})
    told = gone_verdict(dead, "node-a", since=LAST)
    assert (told.status, told.reason) == ("Unknown", "NodeNotReady")
    assert "is not ready since 1970-01-01T00:01:00Z" in told.message
    assert (
        "does not exist" in gone_verdict(world(session(), nodes={}), "node-a", since=LAST).message
    )


def test_nothing_new_is_placed_where_the_plugin_is_gone() -> None:
    silent = Condition(READY, "Unknown", "PluginGone", "gone", 0, LAST)
    gone = dataclasses.replace(gpu_node("node-a"), conditions=(silent,))
    for found, phase in ((gone, False), (gpu_node("node-a"), True)):
        state = view.View().state(
            world(session(), gpu_nodes={"node-a": found}), blocked=frozenset()
        )
        assert state.sessions["team/chat"].phase is Phase.WAITING
        assert state.nodes["node-a"].heard is phase
        lines = explain(state, "team/chat").lines
        assert ("device plugin is gone" in lines[0].why) is not phase
