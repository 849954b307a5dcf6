"""What the plan decides from, derived from what was seen."""

import dataclasses
from decimal import Decimal
from typing import Any

import pytest
from sojourn_api.objects import (
    Failure,
    Gpu,
    GpuNode,
    IdleAction,
    Model,
    ObjectMeta,
    Resources,
    Session,
    SessionStatus,
    Tenant,
)
from sojourn_operator import pacing, view
from sojourn_operator.budget import parse_budget
from sojourn_operator.cache import Seen
from sojourn_operator.node import Node, quantity
from sojourn_operator.plan import Phase
from sojourn_operator.scene import Runtime
from sojourn_operator.world import World

from tests.unit.pretend_session import TIER, Pretend, pod, report, session

GIB = 1 << 30
NOW = 1000.0


def meta(name: str, created: str = "2026-01-01T00:00:00Z") -> ObjectMeta:
    return ObjectMeta(name, "", f"uid-{name}", 3, created)


MODEL = Model(
    meta("smollm2"),
    uri="file:///m",
    weight_bytes=2 * GIB,
    kv_bytes_per_token=GIB // 1024,
    layers=1,
    heads=1,
    kv_heads=1,
    context_length=1024,
)


def gpu_node(name: str, slices: int = 80, slice_bytes: int = GIB) -> GpuNode:
    gpu = Gpu(0, "GPU-0", "A100-80GB", 80 * GIB, slice_bytes, slices, slices, healthy=True)
    return GpuNode(meta(name), (gpu,))


def node(name: str, **changes: Any) -> Node:
    found = Node(
        name=name,
        labels={},
        taints=(),
        cordoned=False,
        ready=True,
        changed=0.0,
        cpu_milli=1000,
        memory_bytes=GIB,
        pods=110,
        gpu_slices={0: 80},
    )
    return dataclasses.replace(found, **changes)


def world(found: Session, **parts: Any) -> World:
    known: dict[str, Any] = {
        "models": {"smollm2": MODEL},
        "tiers": {"silver": TIER},
        "gpu_nodes": {"node-a": gpu_node("node-a")},
        "nodes": {"node-a": node("node-a")},
    }
    return World(now=NOW, sessions={"team/chat": Seen(found)}, **(known | parts))


def planned(found: Session, *, blocked: bool = False, **parts: Any) -> Any:
    keys = frozenset({"team/chat"} if blocked else set())
    return view.state(world(found, **parts), blocked=keys).sessions["team/chat"]


def test_slices_without_a_wish_hold_weights_context_and_workspace() -> None:
    """2 GiB of weights, 1 GiB of context, half a GiB of workspace."""
    assert planned(session()).request.slices == 4
    assert planned(session(context_length=512)).request.slices == 3
    small = {"node-a": gpu_node("node-a", slice_bytes=GIB // 4)}
    assert planned(session(), gpu_nodes=small).request.slices == 14


def test_a_wish_for_slices_counts() -> None:
    assert planned(session(resources=Resources(slices=9))).request.slices == 9


def test_the_share_is_the_wish_else_the_tenants_guarantee_else_the_tiers() -> None:
    acme = Tenant(meta("acme"), ("team",), ("silver",), guarantees={"silver": 700})
    assert planned(session()).request.share == 1000
    assert planned(session(), tenants={"acme": acme}).request.share == 700
    wished = session(resources=Resources(share=5))
    assert planned(wished, tenants={"acme": acme}).request.share == 5


def test_the_oldest_claim_on_a_namespace_wins() -> None:
    young = Tenant(meta("a", "2026-02-01T00:00:00Z"), ("team",), ("silver",))
    old = Tenant(meta("b", "2026-01-01T00:00:00Z"), ("team",), ("silver",))
    assert planned(session(), tenants={"a": young, "b": old}).tenant == "b"


def test_phases_follow_the_life_of_a_session() -> None:
    found = Pretend()
    assert planned(found.session).phase is Phase.WAITING
    found.place()
    assert planned(found.session).phase is Phase.STARTING
    found.run_pods()
    assert planned(found.session).phase is Phase.RUNNING
    found.pause()
    assert planned(found.session).phase is Phase.PAUSING
    found.end_pods()
    assert planned(found.session).phase is Phase.PAUSED
    assert planned(found.session, blocked=True).phase is Phase.FAILED


def test_a_placed_session_asks_for_what_it_holds_whatever_became_of_its_model() -> None:
    found = Pretend()
    found.place()
    assert planned(found.session, models={}).request.slices == 12


def test_back_off_ends_and_a_change_ends_it_at_once() -> None:
    found = Pretend()
    found.place()
    found.run_pods()
    found.crash_pods()
    assert pacing.not_before(found.session) == NOW + 5
    changed = dataclasses.replace(found.session.meta, generation=2)
    assert pacing.not_before(dataclasses.replace(found.session, meta=changed)) == 0


@pytest.mark.parametrize(("generation", "model"), [(1, 3), (2, 3), (1, 4)])
def test_what_is_not_tried_again_waits_for_session_or_model(generation: int, model: int) -> None:
    failure = Failure("ModelNotFound", "", retry=False, at="", generation=1, model_generation=3)
    found = session()
    changed = dataclasses.replace(
        found,
        meta=dataclasses.replace(found.meta, generation=generation),
        status=SessionStatus(failure=failure),
    )
    blocked = pacing.blocked_by_failure(changed, model_generation=model)
    assert blocked is ((generation, model) == (1, 3))


def test_a_node_that_refused_is_avoided_for_a_while() -> None:
    found = Pretend()
    found.place()
    found.pods["chat-1"] = pod(1, phase="Failed", reason="UnexpectedAdmissionError")
    found.settle()
    assert planned(found.session).avoid == ("node-a",)
    later = dataclasses.replace(world(found.session), now=NOW + pacing.AVOID_SECONDS)
    assert view.state(later, blocked=frozenset()).sessions["team/chat"].avoid == ()


def test_pods_of_a_lost_past_take_their_slices_out_of_service() -> None:
    stray = pod(1, node="node-a", phase="Running")
    state = view.state(world(session(), pods={"team/chat-1": stray}), blocked=frozenset())
    assert state.nodes["node-a"].gpus[0].slices == 80 - 12


def test_what_the_kubelet_does_not_count_cannot_be_had() -> None:
    """Its device plugin is gone, or not there yet: a pod would be refused."""
    short = {"node-a": node("node-a", gpu_slices={0: 5})}
    state = view.state(world(session(), nodes=short), blocked=frozenset())
    assert state.nodes["node-a"].gpus[0].slices == 5
    bare = {"node-a": node("node-a", gpu_slices={})}
    state = view.state(world(session(), nodes=bare), blocked=frozenset())
    assert state.nodes["node-a"].gpus[0].slices == 0


@pytest.mark.parametrize(
    ("selector", "covered"),
    [
        ({"matchLabels": {"app": "chat"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["chat"]}]}, False),
        ({}, True),
    ],
)
def test_a_disruption_budget_covers_what_its_selector_says(
    selector: dict[str, Any], *, covered: bool
) -> None:
    raw = {
        "metadata": {"name": "few", "namespace": "team"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": 1},
    }
    found = Pretend()
    found.place()
    parts = {"budgets": {"team/few": parse_budget(raw)}, "pods": found.pods}
    state = view.state(world(found.session, **parts), blocked=frozenset())
    assert state.sessions["team/chat"].budgets == (("team/few",) if covered else ())
    assert state.budgets == {"team/few": 1}


def test_a_silent_node_is_lost_after_its_time_and_a_missing_one_at_once() -> None:
    silent = node("node-a", ready=False, changed=NOW - 59)
    pods = {"p": pod(1, node="node-a"), "q": pod(2, node="gone")}
    found = world(session(), nodes={"node-a": silent}, pods=pods)
    assert found.lost_nodes() == {"gone"}
    assert list(found.silent_until()) == [NOW + 1]
    assert dataclasses.replace(found, now=NOW + 1).lost_nodes() == {"gone", "node-a"}


def test_a_node_that_cannot_be_read_is_not_lost() -> None:
    """Else its sessions would be started twice."""
    pods = {"p": pod(1, node="odd")}
    found = world(session(), pods=pods, unreadable_nodes=frozenset({"odd"}))
    assert found.lost_nodes() == frozenset()


def test_idle_pauses_and_a_later_wake_ends_it() -> None:
    found = Pretend(session(idle_after_seconds=60, idle_action=IdleAction.PAUSE))
    found.place()
    found.run_pods()
    assert not pacing.idle(found.session, Runtime())
    assert pacing.idle(found.session, Runtime(idle=True))
    found.pause(by="", reason="Idle")
    assert pacing.idle(found.session, None)
    found.end_pods(report(1))
    assert pacing.idle(found.session, None)
    woken = {"sojourn.dev/wake": "2026-01-01T00:00:00Z"}
    awake = dataclasses.replace(found.session.meta, annotations=woken)
    assert not pacing.idle(dataclasses.replace(found.session, meta=awake), None)


@pytest.mark.parametrize(
    ("text", "value"), [("250m", "0.25"), ("2", "2"), ("1Gi", "1073741824"), ("1k", "1000")]
)
def test_quantities(text: str, value: str) -> None:
    assert quantity(text) == Decimal(value)
