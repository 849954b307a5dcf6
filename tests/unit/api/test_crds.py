"""The CRDs say the same as `objects` and `parse`, and bound all that a user can write."""

import copy
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from sojourn_api import names, objects, parse, render

FOLDER = Path(__file__).parents[3] / "crds"
CRDS: dict[str, dict[str, Any]] = {
    crd["spec"]["names"]["kind"]: crd
    for crd in (yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml")))
}
SCHEMAS: dict[str, dict[str, Any]] = {
    kind: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for kind, crd in CRDS.items()
}
KINDS = sorted(CRDS)

META = objects.ObjectMeta(name="x", namespace="", uid="", generation=0, created="")
CONDITION = objects.Condition("Ready", "True", "Serving", "Answers.", 3, "2026-11-30T20:00:00Z")
PLACE = objects.GpuPlace(0, "GPU-1", "A100-80GB", 12, 1000)
GPU = objects.Gpu(
    ordinal=0,
    uuid="GPU-1",
    model="A100",
    memory_bytes=2,
    slice_bytes=1,
    slices=2,
    free_slices=1,
    healthy=True,
    foreign_by=("/usr/bin/Xorg",),
    links=(1,),
    share=1000,
    load=objects.GpuLoad(busy=90, sm=40, bandwidth=0),
    profiles=(objects.MigRoom("3g.40gb", 0, 2),),
    allocators=(objects.AllocatorUse("a/x-1", 4, 3, 1, 0),),
)
OFFENDER = objects.Offender("a", "x-1", "uid", "OverMemory", "Uses 2 bytes.", stop=True)
REF = objects.SnapshotRef(
    name="x-1",
    uri="file:///store/x",
    tokens=1,
    bytes=2,
    conversations=3,
    digest="sha256:1",
    weights_digest="sha256:2",
    kernel_class="cpu-fma-bf16-v1",
    epoch=1,
    saved="2026-11-30T20:00:00Z",
    manifest="manifest-1-1.json",
)
TEMPLATE: dict[str, object] = {
    "image": "registry.example/runtime:1",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "pull"}],
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
    "resources": {"limits": {"cpu": 2, "memory": "8Gi"}, "requests": {"cpu": "500m"}},
    "env": [{"name": "LOG", "value": "debug"}],
    "volumes": [{"name": "certs", "secret": {"secretName": "certs"}}],
    "volumeMounts": [{"name": "certs", "mountPath": "/certs", "readOnly": True}],
    "priorityClassName": "high",
    "annotations": {"a": "b"},
    "labels": {"a": "b"},
}
FULL: dict[str, dict[str, Any]] = {
    "LLMSession": render.session_to_raw(
        objects.Session(
            META,
            objects.SessionSpec(
                model="smollm2",
                tier="gold",
                context_length=4096,
                resources=objects.Resources(slices=12, share=1000, max_shards=2),
                placement=objects.Placement(("A100-80GB",), {"a": "b"}, objects.Spreading.SPREAD),
                suspend=True,
                idle_after_seconds=60,
                idle_action=objects.IdleAction.PAUSE,
                snapshot_policy=objects.SnapshotPolicy.RETAIN,
                checkpoint_tokens=64,
                api_key=objects.SecretKey("key"),
                template=TEMPLATE,
            ),
            objects.SessionStatus(
                epoch=1,
                conditions=(CONDITION, objects.Condition("Placed", "True", "Placed", "", 3)),
                placement=objects.SessionPlacement("node-a", (PLACE,)),
                nomination=objects.Nomination("node-a", (PLACE,), ("a/b",), "2026-11-30T20:00:00Z"),
                snapshot=REF,
                preempted_by="a/b",
                paused_at="2026-11-30T20:00:00Z",
                started_at="2026-11-30T20:00:00Z",
                endpoint="http://x.a.svc:8000/v1",
                exact=False,
                context_length=4096,
                failures=1,
                failure=objects.Failure(
                    reason="StoreFull",
                    message="spec.uri",
                    retry=False,
                    at="2026-11-30T20:00:00Z",
                    generation=1,
                    model_generation=1,
                ),
            ),
        )
    ),
    "LLMModel": render.model_to_raw(
        objects.Model(
            META,
            uri="file:///models/x.gguf",
            weight_bytes=1,
            kv_bytes_per_token=1,
            layers=1,
            heads=3,
            kv_heads=3,
            context_length=1,
            digest="sha256:" + "0" * 64,
            quantization="w8a8",
            decode_fraction=250,
            minimum_gpu_bytes=1,
            conditions=(CONDITION,),
        )
    ),
    "QoSTier": render.tier_to_raw(
        objects.Tier(META, 1, 2, 3, objects.LatencyMetric.INTER_TOKEN_LATENCY, ("gold",), 4, 5, 6)
    ),
    "Tenant": render.tenant_to_raw(
        objects.Tenant(
            META,
            namespaces=("a",),
            tiers=("gold",),
            guarantees={"gold": 1},
            weight=2,
            quota=objects.Quota(share=3, slices=4, sessions=5),
            api_key=objects.SecretKey("key"),
            conditions=(CONDITION,),
        )
    ),
    "GPUNode": render.gpu_node_to_raw(
        objects.GpuNode(
            META,
            gpus=(GPU,),
            driver_version="615.1",
            stranded=(objects.Stranded(size=12, slices=1),),
            offenders=(OFFENDER,),
            conditions=(CONDITION,),
        )
    ),
    "SessionSnapshot": render.snapshot_to_raw(objects.Snapshot(META, "x", REF, (CONDITION,))),
}
# What others than `render` write: sums over GPUs by the device plugin, use by the operator.
WRITTEN_ELSEWHERE = {
    "GPUNode": {
        "status.gpuCount",
        "status.healthyGpus",
        "status.gpuModel",
        "status.slicesTotal",
        "status.slicesFree",
        "status.scatterPercent",
        "status.fragmentPercent",
        "status.strandedSlices",
        "status.migGpus",
        "status.busyPercent",
    },
    "Tenant": {
        "status.shareUsed",
        "status.shareBorrowed",
        "status.shareReclaimable",
        "status.sessions",
    },
}
PARSERS = {
    "LLMSession": parse.parse_session,
    "LLMModel": parse.parse_model,
    "QoSTier": parse.parse_tier,
    "Tenant": parse.parse_tenant,
    "GPUNode": parse.parse_gpu_node,
    "SessionSnapshot": parse.parse_snapshot,
}


def test_the_six_kinds_are_there() -> None:
    assert sorted(PARSERS) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_group_version_and_category_are_the_shared_names(kind: str) -> None:
    spec = CRDS[kind]["spec"]
    assert spec["group"] == names.GROUP
    assert [version["name"] for version in spec["versions"]] == [names.VERSION]
    assert spec["names"]["categories"] == [names.CATEGORY]
    assert CRDS[kind]["metadata"]["name"] == f"{spec['names']['plural']}.{names.GROUP}"


def test_short_names_do_not_collide() -> None:
    taken = [short for crd in CRDS.values() for short in crd["spec"]["names"]["shortNames"]]
    core = {"po", "svc", "sts", "ds", "cm", "ns", "no", "pv", "pvc", "sa", "ep", "ev", "rs", "pc"}
    assert len(taken) == len(set(taken)) == len(KINDS)
    assert not core & set(taken)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_bounded_and_described(kind: str) -> None:
    for path, schema in walk(SCHEMAS[kind]):
        if path in {"apiVersion", "kind", "metadata"}:
            continue
        assert schema.get("description"), f"{path} has no description for kubectl explain"
        assert bounded(schema), f"{path} is unbounded: {schema}"


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_merge_by_type_and_are_there_from_the_start(kind: str) -> None:
    if kind == "QoSTier":
        assert "status" not in SCHEMAS[kind]["properties"]
        return
    status = SCHEMAS[kind]["properties"]["status"]
    conditions = status["properties"]["conditions"]
    assert status["default"] == {}
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    expected = names.SESSION_CONDITIONS if kind == "LLMSession" else (names.READY,)
    assert tuple(entry["type"] for entry in conditions["default"]) == expected
    assert {entry["lastTransitionTime"] for entry in conditions["default"]} == {render.NEVER}
    assert CRDS[kind]["spec"]["versions"][0]["subresources"] == {"status": {}}


@pytest.mark.parametrize("kind", KINDS)
def test_rules_say_which_field_and_what_to_do(kind: str) -> None:
    for path, schema in walk(SCHEMAS[kind]):
        for rule in schema.get("x-kubernetes-validations", ()):
            said = rule["message"]
            assert said.startswith(("spec", "metadata")), f"{path}: {said}"
            assert ";" in said or "," in said, f"{path} names no remedy: {said}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_rendered_fits_the_schema(kind: str) -> None:
    jsonschema.validate(FULL[kind], strict(SCHEMAS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_the_schema_is_rendered(kind: str) -> None:
    rendered = set(paths(FULL[kind]))
    declared = {
        path
        for path, schema in walk(SCHEMAS[kind])
        if not schema.get("x-kubernetes-preserve-unknown-fields")
        and path.startswith(("spec.", "status."))
        and not path.startswith("spec.template.")
        and "{}" not in path
    }
    assert declared - rendered - WRITTEN_ELSEWHERE.get(kind, set()) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_of_the_schema_are_those_of_the_types(kind: str) -> None:
    """An object that the API server has defaulted reads like the one that the user wrote."""
    minimal = required_only(FULL[kind], SCHEMAS[kind])
    assert PARSERS[kind](defaulted(minimal, spec_only(SCHEMAS[kind]))) == PARSERS[kind](minimal)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"GPUNode"}))
def test_numbers_have_the_same_bounds_in_schema_and_parser(kind: str) -> None:
    for path, schema in walk(SCHEMAS[kind]["properties"]["spec"], "spec"):
        if schema.get("type") != "integer" or "template" in path:
            continue
        for wrong in (schema["minimum"] - 1, schema["maximum"] + 1):
            with pytest.raises(parse.Invalid) as refused:
                PARSERS[kind](replaced(FULL[kind], path, wrong))
            assert refused.value.path == path.replace("[]", "[0]")
        PARSERS[kind](replaced(alone(FULL[kind]), path, schema["maximum"]))


def test_the_columns_of_a_session_come_in_the_order_people_read() -> None:
    columns = CRDS["LLMSession"]["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if not column.get("priority")]
    assert " ".join(shown) == "MODEL TIER READY REASON NODE GPU ENDPOINT AGE"


def test_the_columns_of_a_node_show_slices_and_fragmentation() -> None:
    columns = CRDS["GPUNode"]["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if not column.get("priority")]
    assert (
        " ".join(shown) == "GPUS MODEL SLICES FREE SCATTER FRAGMENTATION HEALTHY READY REASON AGE"
    )


def test_no_field_of_a_session_spec_was_forgotten() -> None:
    flattened = {
        "idle_after_seconds": "idle.afterSeconds",
        "idle_action": "idle.action",
        "snapshot_policy": "snapshot.policy",
        "checkpoint_tokens": "snapshot.checkpointTokens",
        "api_key": "apiKeySecretRef",
        "context_length": "contextLength",
    }
    declared = {path for path, _ in walk(SCHEMAS["LLMSession"]["properties"]["spec"])}
    for field in fields(objects.SessionSpec):
        assert flattened.get(field.name, field.name) in declared


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within one, with its path; list items are `[]`, map values `{}`."""
    if path:
        yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


def bounded(schema: dict[str, Any]) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return "maxLength" in schema
    match schema["type"]:
        case "string":
            return bool({"maxLength", "enum", "format"} & set(schema))
        case "integer":
            return {"minimum", "maximum", "format"} <= set(schema)
        case "array":
            return "maxItems" in schema and "x-kubernetes-list-type" in schema
        case "object":
            return "additionalProperties" not in schema or "maxProperties" in schema
        case kind:
            return bool(kind == "boolean")


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as kubectl's strict validation reads it: an unknown field is an error."""
    found = copy.deepcopy(schema)
    for path, inner in [("", found), *walk(found)]:
        if inner.get("x-kubernetes-preserve-unknown-fields") or path == "metadata":
            continue
        if "properties" in inner:
            inner["additionalProperties"] = False
    return found


def paths(value: object, path: str = "") -> Iterator[str]:
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, f"{path}.{name}" if path else name)
    if isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{path}[]")


def required_only(value: Any, schema: dict[str, Any]) -> Any:
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    keep = [*schema.get("required", ()), "metadata"]
    return {
        name: required_only(value[name], schema["properties"].get(name, {}))
        for name in keep
        if name in value
    }


def spec_only(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {name: part for name, part in schema["properties"].items() if name != "status"}
    return {**schema, "properties": inner}


def defaulted(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server makes of an object: absent fields take their defaults, outside in."""
    if isinstance(value, list):
        return [defaulted(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for name, inner in schema.get("properties", {}).items():
        if name not in found and "default" in inner:
            found[name] = copy.deepcopy(inner["default"])
        if name in found:
            found[name] = defaulted(found[name], inner)
    return found


def replaced(raw: dict[str, Any], path: str, value: int) -> dict[str, Any]:
    found = copy.deepcopy(raw)
    place = found
    *steps, last = path.split(".")
    for step in steps:
        inner = place[step.removesuffix("[]")]
        place = inner[0] if step.endswith("[]") else inner
    place[last] = value
    return found


def alone(raw: dict[str, Any]) -> dict[str, Any]:
    """A model with one KV head, so that `heads` and `kvHeads` may be set one by one."""
    found = copy.deepcopy(raw)
    if found["kind"] == "LLMModel":
        found["spec"].update(heads=1024, kvHeads=1)
    return found
