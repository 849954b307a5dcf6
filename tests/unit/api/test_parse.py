"""Parsing is the inverse of rendering, tolerant of a missing status, and strict on a spec."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_api import objects, parse, render

names = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
texts = st.text(max_size=20)
filled = st.text(min_size=1, max_size=20)
counts = st.integers(0, 2**40)
shares = st.integers(0, 1_000_000)
flags = st.booleans()

metas = st.builds(
    objects.ObjectMeta,
    name=names,
    namespace=st.sampled_from(["", "team-a"]),
    uid=st.uuids().map(str),
    generation=counts,
    created=st.just("2026-11-30T20:00:00Z"),
    deleting=flags,
    resource_version=counts.map(str),
    finalizers=st.lists(names, max_size=2).map(tuple),
    labels=st.dictionaries(names, texts, max_size=2),
    annotations=st.dictionaries(names, texts, max_size=2),
)
conditions = st.lists(
    st.builds(
        objects.Condition,
        type=names,
        status=st.sampled_from(["True", "False", "Unknown"]),
        reason=filled,
        message=texts,
        observed_generation=counts,
        last_transition=st.just("2026-11-30T20:00:00Z"),
    ),
    max_size=3,
).map(tuple)
places = st.lists(
    st.builds(
        objects.GpuPlace,
        ordinal=st.integers(0, 15),
        uuid=texts,
        model=texts,
        slices=st.integers(1, 80),
        share=shares,
    ),
    max_size=3,
).map(tuple)
snapshot_refs = st.builds(
    objects.SnapshotRef,
    name=names,
    uri=filled,
    tokens=counts,
    bytes=counts,
    conversations=counts,
    digest=texts,
    weights_digest=texts,
    kernel_class=texts,
    epoch=st.integers(1, 1000),
    saved=texts,
    manifest=texts,
)
secret_keys = st.builds(objects.SecretKey, name=names, key=names)
idle = st.one_of(
    st.tuples(st.just(0), st.just(objects.IdleAction.NONE)),
    st.tuples(st.integers(1, 3600), st.sampled_from(objects.IdleAction)),
)
session_specs = idle.flatmap(
    lambda pair: st.builds(
        objects.SessionSpec,
        model=names,
        tier=names,
        context_length=st.none() | st.integers(1, 10_000),
        resources=st.builds(
            objects.Resources,
            slices=st.none() | st.integers(1, 80),
            share=st.none() | st.integers(1, 5000),
            max_shards=st.integers(1, 16),
        ),
        placement=st.builds(
            objects.Placement,
            gpu_models=st.lists(names, max_size=2).map(tuple),
            node_selector=st.dictionaries(names, texts, max_size=2),
            spreading=st.sampled_from(objects.Spreading),
        ),
        suspend=flags,
        idle_after_seconds=st.just(pair[0]),
        idle_action=st.just(pair[1]),
        snapshot_policy=st.sampled_from(objects.SnapshotPolicy),
        checkpoint_tokens=st.integers(1, 65_536),
        api_key=st.none() | secret_keys,
        template=st.dictionaries(names, filled, max_size=2),
    )
)
session_statuses = st.builds(
    objects.SessionStatus,
    epoch=counts,
    conditions=conditions,
    placement=st.none() | st.builds(objects.SessionPlacement, node=names, gpus=places),
    nomination=st.none()
    | st.builds(
        objects.Nomination,
        node=names,
        gpus=places,
        victims=st.lists(names, max_size=2).map(tuple),
        expires=texts,
    ),
    snapshot=st.none() | snapshot_refs,
    preempted_by=texts,
    paused_at=texts,
    started_at=texts,
    endpoint=texts,
    exact=flags,
    failures=counts,
    failure=st.none()
    | st.builds(
        objects.Failure,
        reason=filled,
        message=texts,
        retry=flags,
        at=texts,
        generation=counts,
        model_generation=counts,
    ),
)
sessions = st.builds(objects.Session, meta=metas, spec=session_specs, status=session_statuses)
models = st.integers(1, 16).flatmap(
    lambda kv_heads: st.builds(
        objects.Model,
        meta=metas,
        uri=filled,
        weight_bytes=st.integers(1, 2**50),
        kv_bytes_per_token=st.integers(1, 2**30),
        layers=st.integers(1, 200),
        heads=st.integers(1, 8).map(lambda groups: groups * kv_heads),
        kv_heads=st.just(kv_heads),
        context_length=st.integers(1, 10_000),
        digest=texts,
        quantization=filled,
        decode_fraction=st.integers(0, 1000),
        minimum_gpu_bytes=counts,
        conditions=conditions,
    )
)
tiers = st.builds(
    objects.Tier,
    meta=metas,
    priority=st.integers(0, 1000),
    guaranteed_share=shares,
    target_p95_ms=st.integers(1, 1000),
    target_metric=st.sampled_from(objects.LatencyMetric),
    pausable_by=st.lists(st.sampled_from(["GOLD", "SILVER"]), max_size=2).map(tuple),
    min_run_seconds=st.integers(0, 600),
    cool_down_seconds=st.integers(0, 600),
    time_slice_ms=st.integers(1, 1000),
)
tenants = st.builds(
    objects.Tenant,
    meta=metas,
    namespaces=st.lists(names, max_size=2).map(tuple),
    tiers=st.just(("gold", "silver")),
    guarantees=st.dictionaries(st.sampled_from(["gold", "silver"]), shares),
    weight=st.integers(1, 1000),
    quota=st.builds(
        objects.Quota,
        share=st.none() | shares,
        slices=st.none() | shares,
        sessions=st.none() | shares,
    ),
    api_key=st.none() | secret_keys,
    conditions=conditions,
)
percents = st.none() | st.integers(0, 100)
loads = st.builds(objects.GpuLoad, busy=percents, sm=percents, bandwidth=percents)
rooms = st.builds(objects.MigRoom, profile=filled, remaining=counts, ideal=counts)
uses = st.builds(
    objects.AllocatorUse,
    pod=filled,
    reserved=counts,
    used=counts,
    inactive_split=st.none() | counts,
    largest_free=st.none() | counts,
)
offenders = st.builds(
    objects.Offender,
    namespace=names,
    pod=names,
    uid=texts,
    reason=filled,
    message=texts,
    stop=flags,
)
gpu_nodes = st.builds(
    objects.GpuNode,
    meta=metas,
    gpus=st.lists(
        st.builds(
            objects.Gpu,
            ordinal=st.integers(0, 15),
            uuid=filled,
            model=texts,
            memory_bytes=counts,
            slice_bytes=st.integers(1, 2**30),
            slices=counts,
            free_slices=counts,
            healthy=flags,
            reason=texts,
            foreign_bytes=counts,
            foreign_by=st.lists(filled, max_size=2).map(tuple),
            mig=flags,
            links=st.lists(st.integers(0, 15), max_size=3).map(tuple),
            share=shares,
            load=loads,
            profiles=st.lists(rooms, max_size=2).map(tuple),
            allocators=st.lists(uses, max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    driver_version=texts,
    offenders=st.lists(offenders, max_size=2).map(tuple),
    stranded=st.lists(st.builds(objects.Stranded, size=counts, slices=counts), max_size=2).map(
        tuple
    ),
    conditions=conditions,
)


@given(sessions)
def test_session_survives_the_way_to_the_api_server_and_back(session: objects.Session) -> None:
    assert parse.parse_session(render.session_to_raw(session)) == session


@given(models)
def test_model_survives_the_way_to_the_api_server_and_back(model: objects.Model) -> None:
    assert parse.parse_model(render.model_to_raw(model)) == model


@given(tiers)
def test_tier_survives_the_way_to_the_api_server_and_back(tier: objects.Tier) -> None:
    assert parse.parse_tier(render.tier_to_raw(tier)) == tier


@given(tenants)
def test_tenant_survives_the_way_to_the_api_server_and_back(tenant: objects.Tenant) -> None:
    assert parse.parse_tenant(render.tenant_to_raw(tenant)) == tenant


@given(gpu_nodes)
def test_gpu_node_survives_the_way_to_the_api_server_and_back(node: objects.GpuNode) -> None:
    assert parse.parse_gpu_node(render.gpu_node_to_raw(node)) == node


@given(metas, snapshot_refs, conditions)
def test_snapshot_survives_the_way_to_the_api_server_and_back(
    meta: objects.ObjectMeta, ref: objects.SnapshotRef, found: tuple[objects.Condition, ...]
) -> None:
    named = dataclasses.replace(ref, name=meta.name)
    snapshot = objects.Snapshot(meta, "chat", named, found)
    assert parse.parse_snapshot(render.snapshot_to_raw(snapshot)) == snapshot


SESSION = {"metadata": {"name": "chat"}, "spec": {"model": "smollm2", "tier": "gold"}}
MODEL = {
    "metadata": {"name": "smollm2"},
    "spec": {
        "uri": "file:///models/smollm2.gguf",
        "weightBytes": 269_030_400,
        "kvBytesPerToken": 23_040,
        "layers": 30,
        "heads": 9,
        "kvHeads": 3,
        "contextLength": 8192,
    },
}
TIER = {"metadata": {"name": "gold"}, "spec": {"priority": 1000, "guaranteedShare": 2500}}
TENANT = {"metadata": {"name": "lab"}, "spec": {"namespaces": ["a"], "tiers": ["gold"]}}
SNAPSHOT = {
    "metadata": {"name": "chat-1"},
    "spec": {"session": "chat", "uri": "file:///s", "epoch": 1},
}
NODE: dict[str, Any] = {"metadata": {"name": "node-a"}, "status": {"gpus": [{}]}}

PARSERS: dict[str, tuple[Callable[[dict[str, Any]], object], dict[str, Any]]] = {
    "session": (parse.parse_session, SESSION),
    "model": (parse.parse_model, MODEL),
    "tier": (parse.parse_tier, TIER),
    "tenant": (parse.parse_tenant, TENANT),
    "snapshot": (parse.parse_snapshot, SNAPSHOT),
    "node": (parse.parse_gpu_node, NODE),
}


def test_a_session_without_status_is_a_new_one() -> None:
    assert parse.parse_session(SESSION).status == objects.SessionStatus()


def test_an_explicit_null_reads_as_absent() -> None:
    raw = {**SESSION, "status": None, "spec": {**SESSION["spec"], "resources": None}}
    assert parse.parse_session(raw).spec.resources == objects.Resources()


def test_a_field_of_a_newer_version_is_ignored() -> None:
    raw = {**SESSION, "spec": {**SESSION["spec"], "colour": "green"}}
    assert parse.parse_session(raw) == parse.parse_session(SESSION)


def test_a_tier_without_target_is_best_effort() -> None:
    assert parse.parse_tier(TIER).target_p95_ms == 0


WRONG = [
    ("session", "spec.model", None, "is missing"),
    ("session", "spec.model", "", "must not be empty"),
    ("session", "spec.tier", 7, "must be a text"),
    ("session", "spec.contextLength", 0, "from 1 to 16777216"),
    ("session", "spec.contextLength", True, "whole number"),
    ("session", "spec.contextLength", 1.5, "whole number"),
    ("session", "spec.resources.slices", "12", "whole number from 1 to 65536, not '12'"),
    ("session", "spec.resources", 3, "must be an object"),
    ("session", "spec.resources.maxShards", 17, "from 1 to 16"),
    ("session", "spec.placement.spreading", "Both", "one of Pack, Spread"),
    ("session", "spec.placement.gpuModels", "A100", "must be a list"),
    ("session", "spec.placement.gpuModels[0]", None, "must be a text"),
    ("session", "spec.suspend", "yes", "true or false"),
    ("session", "spec.idle.action", "Sleep", "one of None, Pause"),
    ("session", "spec.idle.afterSeconds", 0, "must be 1 or more"),
    ("session", "spec.snapshot.policy", "Keep", "one of Delete, Retain"),
    ("session", "spec.apiKeySecretRef.name", "", "must not be empty"),
    ("session", "spec.template", [], "must be an object"),
    ("session", "metadata.name", None, "is missing"),
    ("model", "spec.weightBytes", None, "is missing; set it to a whole number"),
    ("model", "spec.decodeFraction", 1001, "from 0 to 1000"),
    ("model", "spec.kvHeads", 2, "must divide spec.heads (9)"),
    ("tier", "spec.priority", -1, "from 0"),
    ("tier", "spec.pausableBy", ["gold"], "contains the tier itself"),
    ("tier", "spec.target", {"metric": "Speed", "p95Milliseconds": 1}, "one of TimeToFirst"),
    ("tenant", "spec.weight", 0, "from 1 to 1000"),
    ("tenant", "spec.quota.share", -1, "whole number"),
    ("tenant", "spec.guarantees", [{"tier": "bronze", "share": 1}], "not in spec.tiers"),
    ("snapshot", "spec.session", None, "is missing"),
    ("snapshot", "spec.tokens", "many", "whole number"),
    ("node", "status.gpus[0].ordinal", None, "is missing"),
]


@pytest.mark.parametrize(("kind", "path", "value", "said"), WRONG)
def test_a_wrong_field_is_named_with_what_to_do(
    kind: str, path: str, value: object, said: str
) -> None:
    read, good = PARSERS[kind]
    raw = _with(good, path, value)
    if path == "spec.idle.afterSeconds":
        raw["spec"]["idle"]["action"] = "Pause"
    with pytest.raises(parse.Invalid) as refused:
        read(raw)
    assert said in refused.value.message
    assert refused.value.path.startswith(path)
    assert str(refused.value) == f"{refused.value.path}: {refused.value.message}"


def test_a_refusal_never_repeats_a_whole_manifest() -> None:
    with pytest.raises(parse.Invalid) as refused:
        parse.parse_session(_with(SESSION, "spec.suspend", "x" * 10_000))
    assert len(refused.value.message) < 200


def _with(good: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy of an object with one field set; `name[0]` makes a list of that one item."""
    raw = copy.deepcopy(good)
    place: dict[str, Any] = raw
    *steps, last = path.split(".")
    for step in steps:
        place = place[step[:-3]][0] if step.endswith("[0]") else place.setdefault(step, {})
    if last.endswith("[0]"):
        place[last[:-3]] = [value]
    else:
        place[last] = value
    return raw
