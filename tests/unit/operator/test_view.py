"""What the plan decides from, derived from what was seen."""

import dataclasses
from decimal import Decimal
from typing import Any

import pytest
from sojourn_api.names import READY
from sojourn_api.objects import (
    Failure,
    Gpu,
    GpuNode,
    IdleAction,
    LatencyMetric,
    Model,
    ObjectMeta,
    Resources,
    Session,
    SessionStatus,
    Tenant,
)
from sojourn_api.quantity import quantity
from sojourn_operator import reasons, view, wants
from sojourn_operator.act.status import of
from sojourn_operator.config import Config
from sojourn_operator.plan import Phase, Resume, plan
from sojourn_operator.seen.budget import parse_budget
from sojourn_operator.seen.cache import Seen
from sojourn_operator.seen.node import Node
from sojourn_operator.seen.others import Taken
from sojourn_operator.seen.world import World
from sojourn_operator.session import orders, pacing
from sojourn_operator.session.scene import Runtime

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
    return view.View().state(world(found, **parts), blocked=keys).sessions["team/chat"]


def test_slices_without_a_wish_hold_weights_context_and_workspace() -> None:
    """2 GiB of weights, 1 GiB of context, half a GiB of workspace."""
    assert planned(session()).request.slices == 4
    assert planned(session(context_length=512)).request.slices == 3
    small = {"node-a": gpu_node("node-a", slice_bytes=GIB // 4)}
    assert planned(session(), gpu_nodes=small).request.slices == 14


def test_no_session_is_spread_over_more_gpus_than_its_model_has_key_heads() -> None:
    spread = session(resources=Resources(max_shards=8))
    few = {"smollm2": dataclasses.replace(MODEL, kv_heads=3)}
    assert planned(spread, models=few).request.max_shards == 3
    many = {"smollm2": dataclasses.replace(MODEL, heads=16, kv_heads=16)}
    assert planned(spread, models=many).request.max_shards == 8


@pytest.mark.parametrize(("device", "most"), [("cuda", 2), ("cpu", 2), ("cuda-eager", 1)])
def test_what_computes_in_one_process_gets_one_gpu(device: str, most: int) -> None:
    spread = session(resources=Resources(max_shards=2))
    found = view.View(most_shards=wants.most_shards(device))
    many = {"smollm2": dataclasses.replace(MODEL, heads=2, kv_heads=2)}
    state = found.state(world(spread, models=many), blocked=frozenset())
    assert state.sessions["team/chat"].request.max_shards == most


def test_a_wish_for_slices_counts() -> None:
    assert planned(session(resources=Resources(slices=9))).request.slices == 9


def test_the_share_is_the_wish_else_the_tenants_guarantee_else_the_tiers() -> None:
    acme = Tenant(meta("acme"), ("team",), ("silver",), guarantees={"silver": 700})
    assert planned(session()).request.share == 1000
    assert planned(session(), tenants={"acme": acme}).request.share == 700
    wished = session(resources=Resources(share=5))
    assert planned(wished, tenants={"acme": acme}).request.share == 5


@pytest.mark.parametrize(
    ("metric", "target", "wanted"),
    [("InterTokenLatency", 100, 22), ("InterTokenLatency", 0, 0), ("TimeToFirstToken", 100, 0)],
)
def test_a_target_between_tokens_asks_for_bandwidth(metric: str, target: int, wanted: int) -> None:
    """2 GiB of weights for each token, ten times a second."""
    tier = dataclasses.replace(TIER, target_metric=LatencyMetric(metric), target_p95_ms=target)
    assert planned(session(), tiers={"silver": tier}).request.bandwidth == wanted


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


def test_one_that_runs_tells_what_it_is_written_to_ask_for_where_it_does_not_hold_just_that() -> (
    None
):
    found = Pretend(session(resources=Resources(slices=12, share=100)))
    found.place()
    found.run_pods()
    assert planned(found.session).wish is None
    spec = dataclasses.replace(found.session.spec, resources=Resources(slices=400, share=100))
    changed = planned(dataclasses.replace(found.session, spec=spec))
    assert changed.request.slices == 12
    assert changed.wish is not None
    assert changed.wish.slices == 400
    found.pause()
    found.end_pods()
    assert planned(dataclasses.replace(found.session, spec=spec)).wish is None


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
    assert view.View().state(later, blocked=frozenset()).sessions["team/chat"].avoid == ()


@pytest.mark.parametrize("told", [None, 0, 4096])
def test_what_a_pause_has_to_write_is_unknown_until_a_poll_tells(told: int | None) -> None:
    found = Pretend()
    found.place()
    found.run_pods()
    pods = found.pods
    polled = {pod.uid: Runtime(unsaved_bytes=told) for pod in pods.values()}
    assert planned(found.session, pods=pods, runtimes=polled).save_bytes == told
    assert planned(found.session, pods=pods).save_bytes is None
    assert planned(found.session, pods=pods, runtimes=polled).saved_bytes == 0


def test_pods_of_a_lost_past_take_their_slices_out_of_service() -> None:
    stray = pod(1, node="node-a", phase="Running")
    state = view.View().state(world(session(), pods={"team/chat-1": stray}), blocked=frozenset())
    assert state.nodes["node-a"].gpus[0].slices == 80 - 12


def test_pods_of_others_leave_less_of_their_node_and_never_less_than_nothing() -> None:
    taken = {"node-a": Taken(cpu_milli=400, memory_bytes=2 * GIB, pods=10)}
    found = view.View().state(world(session(), others=taken), blocked=frozenset()).nodes["node-a"]
    assert (found.cpu_milli, found.memory_bytes, found.pods) == (600, 0, 100)


def test_a_placed_session_takes_the_cpu_and_memory_that_its_pod_requests() -> None:
    found = Pretend()
    found.place()
    placed = found.session
    mine = pod(placed.status.epoch, cpu_milli=300, memory_bytes=GIB)
    request = planned(placed, pods={"team/chat-1": mine}).request
    assert (request.cpu_milli, request.memory_bytes) == (300, GIB)
    template = {"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
    unseen = dataclasses.replace(placed, spec=dataclasses.replace(placed.spec, template=template))
    assert planned(unseen).request.cpu_milli == 2000


def test_what_the_kubelet_does_not_count_cannot_be_had() -> None:
    """Its device plugin is gone, or not there yet: a pod would be refused."""
    short = {"node-a": node("node-a", gpu_slices={0: 5})}
    state = view.View().state(world(session(), nodes=short), blocked=frozenset())
    assert state.nodes["node-a"].gpus[0].slices == 5
    bare = {"node-a": node("node-a", gpu_slices={})}
    state = view.View().state(world(session(), nodes=bare), blocked=frozenset())
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
    state = view.View().state(world(found.session, **parts), blocked=frozenset())
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


@pytest.mark.parametrize(
    ("said", "fault", "told"),
    [
        ("yesterday", "which is no time", True),
        ("2100-01-01T00:00:00", "which is no time", True),
        ("1970-01-01T00:10:00Z", "which is earlier than the pause", False),
    ],
)
def test_a_wake_that_wakes_nobody_is_answered(said: str, fault: str, *, told: bool) -> None:
    """A time that has passed may have woken it earlier, so it is no warning."""
    found = Pretend(session(idle_after_seconds=60, idle_action=IdleAction.PAUSE))
    found.place()
    found.run_pods()
    found.pause(by="", reason=reasons.IDLE)
    found.end_pods()
    assert orders.unread_wake(found.session) is None
    meta = dataclasses.replace(found.session.meta, annotations={"sojourn.dev/wake": said})
    asked = dataclasses.replace(found.session, meta=meta)
    assert pacing.idle(asked, None)
    message = of(orders.held_back(asked, now=2000), READY).message
    assert f"is {said!r}, {fault}" in message
    assert asked.status.paused_at in message
    note = orders.unread_wake(asked)
    assert (note is not None) == told
    assert note is None or said in note.message


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


def test_what_did_not_change_is_the_same_object_as_before() -> None:
    """The plan's ledger goes by that: a pass costs what has changed."""
    kept = view.View()
    placed = Pretend()
    placed.place()
    first = kept.state(world(placed.session), blocked=frozenset())
    later = dataclasses.replace(world(placed.session), now=NOW + 60)
    second = kept.state(later, blocked=frozenset())
    assert second.sessions["team/chat"] is first.sessions["team/chat"]
    assert second.nodes["node-a"] is first.nodes["node-a"]


@pytest.mark.parametrize(
    "change",
    [
        {"models": {}},
        {"tiers": {"silver": dataclasses.replace(TIER, guaranteed_share=77)}},
        {"tenants": {"acme": Tenant(meta("acme"), ("team",), ("silver",))}},
        {"sessions": {"team/chat": Seen(session(context_length=512))}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_with_a_memory_the_plan_decides_from_the_same_as_without(change: dict[str, Any]) -> None:
    kept, before = view.View(), world(session())
    kept.state(before, blocked=frozenset())
    after = dataclasses.replace(before, **change)
    assert kept.state(after, blocked=frozenset()) == view.View().state(after, blocked=frozenset())
    assert kept.state(before, blocked=frozenset()) == view.View().state(before, blocked=frozenset())


def test_a_node_is_no_longer_avoided_once_the_clock_says_so() -> None:
    kept, found = view.View(), Pretend()
    found.place()
    found.pods["chat-1"] = pod(1, phase="Failed", reason="UnexpectedAdmissionError")
    found.settle()
    early = world(found.session)
    assert kept.state(early, blocked=frozenset()).sessions["team/chat"].avoid == ("node-a",)
    late = dataclasses.replace(early, now=NOW + pacing.AVOID_SECONDS)
    assert kept.state(late, blocked=frozenset()).sessions["team/chat"].avoid == ()


def test_health_links_and_mode_of_each_gpu_reach_the_plan() -> None:
    first, second = (
        dataclasses.replace(gpu_node("node-a").gpus[0], ordinal=ordinal, links=links)
        for ordinal, links in ((0, (1,)), (1, (0,)))
    )
    sick = dataclasses.replace(second, healthy=False, mig=True)
    parts = {
        "gpu_nodes": {"node-a": GpuNode(meta("node-a"), (first, sick))},
        "nodes": {"node-a": node("node-a", gpu_slices={0: 80, 1: 80})},
    }
    found = view.View().state(world(session(), **parts), blocked=frozenset()).nodes["node-a"].gpus
    assert [(one.healthy, one.links, one.mig) for one in found] == [
        (True, (1,), False),
        (False, (0,), True),
    ]


def test_the_least_on_one_gpu_is_a_number_of_slices() -> None:
    large = {"smollm2": dataclasses.replace(MODEL, minimum_gpu_bytes=12 * GIB)}
    assert planned(session(), models=large).request.minimum_slices == 12
    assert planned(session(), models=large).request.slices == 12


@pytest.mark.parametrize(
    ("saved_by", "node_name", "exact"),
    [
        ("cuda-triton3.4-bf16-sm80-v1", "small", True),
        ("cuda-triton3.4-bf16-sm90-v1", "large", True),
        ("cuda-triton3.4-bf16-sm89-v1", "small", False),
        ("cpu-fma-bf16-v1", "small", True),
    ],
)
def test_a_paused_session_goes_back_to_gpus_that_compute_as_its_snapshot_was_computed(
    saved_by: str, node_name: str, *, exact: bool
) -> None:
    """Without such a wish it fills the A100 and leaves the H200 whole."""
    found = Pretend()
    found.place()
    found.run_pods()
    found.pause()
    found.end_pods()
    saved = found.session.status.snapshot
    assert saved is not None
    status = dataclasses.replace(
        found.session.status, snapshot=dataclasses.replace(saved, kernel_class=saved_by)
    )
    h200 = dataclasses.replace(gpu_node("large").gpus[0], model="NVIDIA H200")
    parts = {
        "gpu_nodes": {
            "small": gpu_node("small"),
            "large": GpuNode(meta("large"), (h200,)),
        },
        "nodes": {name: node(name) for name in ("small", "large")},
    }
    paused = dataclasses.replace(found.session, status=status)
    seen = dataclasses.replace(world(paused, **parts), now=NOW + 500)
    (back,) = plan(view.View().state(seen, blocked=frozenset())).actions
    assert isinstance(back, Resume)
    assert (back.place.node, back.exact) == (node_name, exact)


@pytest.mark.parametrize(
    ("model", "said", "worth"),
    [
        ("Mystery 9000", {"model": "mystery-9000", "tbps": 2.039, "tflops": 312}, 1000),
        ("Mystery 9000", {"model": "H100", "tbps": 2.039, "tflops": 312}, None),
        ("NVIDIA H200", {"model": "H200", "tbps": 2.039, "tflops": 312}, 1000),
    ],
)
def test_the_settings_say_how_fast_a_gpu_is(
    model: str, said: dict[str, Any], worth: int | None
) -> None:
    gpu = dataclasses.replace(gpu_node("node-a").gpus[0], model=model)
    seen = world(session(), gpu_nodes={"node-a": GpuNode(meta("node-a"), (gpu,))})
    found = view.of(Config(gpu_speeds=(said,))).state(seen, blocked=frozenset())
    speed = found.nodes["node-a"].gpus[0].speed
    assert (speed.capacity(500) if speed else None) == worth
