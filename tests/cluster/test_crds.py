"""The CRDs against a real API server: what it takes, what it refuses, and what it says then."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from localcluster.loopback import Api
from sojourn_api import names
from sojourn_api.render import tier_to_raw
from sojourn_api.shipped import SHIPPED_TIERS

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
DROP = object()
"""In a change: take the field away."""

GOOD: dict[str, dict[str, Any]] = {
    "LLMSession": {"spec": {"model": "smollm2", "tier": "silver"}},
    "LLMModel": {
        "spec": {
            "uri": "file:///var/lib/sojourn/models/smollm2.gguf",
            "weightBytes": 269_030_016,
            "kvBytesPerToken": 23_040,
            "layers": 30,
            "heads": 9,
            "kvHeads": 3,
            "contextLength": 8192,
        }
    },
    "QoSTier": {"spec": {"priority": 700, "guaranteedShare": 1500, "pausableBy": ["gold"]}},
    "Tenant": {
        "spec": {
            "namespaces": ["team-a"],
            "tiers": ["gold", "silver"],
            "guarantees": [{"tier": "gold", "share": 2500}],
            "quota": {"share": 5000},
        }
    },
    "GPUNode": {},
    "SessionSnapshot": {
        "metadata": {"name": "good-1"},
        "spec": {"session": "good", "epoch": 1, "uri": "file:///store/good", "tokens": 10},
    },
}
NAMESPACE_OF_EXAMPLES = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chats"}}
PLURALS = {
    "LLMSession": "llmsessions",
    "LLMModel": "llmmodels",
    "QoSTier": "qostiers",
    "Tenant": "tenants",
    "GPUNode": "gpunodes",
    "SessionSnapshot": "sessionsnapshots",
}
NAMESPACED = {"LLMSession", "SessionSnapshot"}


@dataclass(frozen=True, slots=True)
class Kinds:
    """Objects of our kinds on one API server."""

    custom: client.CustomObjectsApi

    def create(self, raw: dict[str, Any], *, keep: bool = False) -> dict[str, Any]:
        options = {} if keep else {"dry_run": "All"}
        options["field_validation"] = "Strict"
        kind = raw["kind"]
        where = (names.GROUP, names.VERSION)
        if kind in NAMESPACED:
            found = self.custom.create_namespaced_custom_object(
                *where, "default", PLURALS[kind], raw, **options
            )
        else:
            found = self.custom.create_cluster_custom_object(*where, PLURALS[kind], raw, **options)
        return dict(found)

    def read(self, raw: dict[str, Any]) -> dict[str, Any]:
        """A session as it is now."""
        where = (names.GROUP, names.VERSION, "default", PLURALS[raw["kind"]])
        name = raw["metadata"]["name"]
        return dict(self.custom.get_namespaced_custom_object(*where, name))

    def served(self, raw: dict[str, Any], *, context_length: int) -> None:
        """The operator saw a start of the session serve."""
        where = (names.GROUP, names.VERSION, "default", PLURALS[raw["kind"]])
        status = {"status": {"contextLength": context_length}}
        self.custom.patch_namespaced_custom_object_status(*where, raw["metadata"]["name"], status)

    def replace(self, raw: dict[str, Any]) -> dict[str, Any]:
        kind = raw["kind"]
        where = (names.GROUP, names.VERSION)
        name = raw["metadata"]["name"]
        if kind in NAMESPACED:
            found = self.custom.replace_namespaced_custom_object(
                *where, "default", PLURALS[kind], name, raw
            )
        else:
            found = self.custom.replace_cluster_custom_object(*where, PLURALS[kind], name, raw)
        return dict(found)


@pytest.fixture(scope="module")
def kinds(control_plane: Api) -> Iterator[Kinds]:
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    api = config.new_client_from_config(str(control_plane.kubeconfig))
    yield Kinds(client.CustomObjectsApi(api))
    api.close()


def good(kind: str, **changes: object) -> dict[str, Any]:
    """A valid object of a kind, with fields set (`spec.a.b`) or taken away (`DROP`)."""
    raw = {
        "apiVersion": names.API_VERSION,
        "kind": kind,
        "metadata": {"name": "good"},
        **copy.deepcopy(GOOD[kind]),
    }
    for path, value in changes.items():
        place = raw
        *steps, last = path.split(".")
        for step in steps:
            place = place.setdefault(step, {})
        if value is DROP:
            place.pop(last)
        else:
            place[last] = value
    return raw


def refusal(error: client.ApiException) -> str:
    assert error.status in (400, 403, 422), error
    return str(json.loads(error.body)["message"])


def established(control_plane: Api) -> dict[str, str]:
    items = json.loads(control_plane.kubectl("get", "crd", "-o", "json"))["items"]
    return {
        item["spec"]["names"]["kind"]: condition["status"]
        for item in items
        for condition in item["status"]["conditions"]
        if condition["type"] == "Established"
    }


def test_all_six_are_accepted_and_established(control_plane: Api, kinds: Kinds) -> None:
    assert kinds
    found = established(control_plane)
    assert {kind: found.get(kind) for kind in PLURALS} == dict.fromkeys(PLURALS, "True")


@pytest.mark.parametrize("kind", sorted(PLURALS))
def test_a_good_object_is_accepted(kinds: Kinds, kind: str) -> None:
    assert kinds.create(good(kind))["metadata"]["uid"]


@pytest.mark.parametrize("tier", SHIPPED_TIERS, ids=lambda tier: tier.meta.name)
def test_a_shipped_tier_is_accepted(kinds: Kinds, tier: Any) -> None:
    assert kinds.create(tier_to_raw(tier))["spec"]["priority"] == tier.priority


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_an_example_is_accepted(control_plane: Api, kinds: Kinds, path: Path) -> None:
    assert kinds
    # A dry run makes no namespace for what comes after it in the file.
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(NAMESPACE_OF_EXAMPLES))
    control_plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", str(path))


VALID: dict[str, tuple[str, dict[str, Any]]] = {
    "a name of 40 characters": ("LLMSession", {"metadata.name": "a" * 40}),
    "a model with dots": ("LLMSession", {"spec.model": "qwen3-0.6b"}),
    "a pause when idle": ("LLMSession", {"spec.idle": {"action": "Pause", "afterSeconds": 60}}),
    "a whole template": (
        "LLMSession",
        {
            "spec.template": {
                "image": "registry.example/runtime:1",
                "tolerations": [{"operator": "Exists"}],
                "resources": {"limits": {"cpu": 2, "memory": "8Gi"}},
                "env": [{"name": "LOG", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}],
                "volumeMounts": [{"name": "c", "mountPath": "/c"}],
            }
        },
    ),
    "a tier without target": ("QoSTier", {"spec.pausableBy": []}),
    "gold, pausable by nobody": ("QoSTier", {"metadata.name": "gold", "spec.pausableBy": []}),
    "a tenant without guarantees": ("Tenant", {"spec.guarantees": DROP}),
    "a model with digest": ("LLMModel", {"spec.digest": "sha256:" + "a" * 64}),
    "weights in an object store": ("LLMModel", {"spec.uri": "s3://models/smollm2.gguf"}),
    "a snapshot of a dashed session": (
        "SessionSnapshot",
        {"metadata.name": "my-chat-12", "spec.session": "my-chat", "spec.epoch": 12},
    ),
}


@pytest.mark.parametrize("case", sorted(VALID))
def test_what_is_unusual_but_right_is_accepted(kinds: Kinds, case: str) -> None:
    kind, changes = VALID[case]
    assert kinds.create(good(kind, **changes))


def template(**parts: object) -> dict[str, object]:
    return {f"spec.template.{name}": value for name, value in parts.items()}


def one(name: str, item: dict[str, object]) -> dict[str, object]:
    return template(**{name: [item]})


SESSION = "LLMSession"
MODEL = "LLMModel"
TIER = "QoSTier"
TENANT = "Tenant"
SNAPSHOT = "SessionSnapshot"
NODE = "GPUNode"
BIG = 10**15
MOUNT = "spec.template.volumeMounts"
# kind, what is changed, the field that the answer names, and the remedy in it
MALFORMED: list[tuple[str, dict[str, Any], str, str]] = [
    (SESSION, {"metadata.name": "a" * 41}, "metadata.name", "choose a shorter name"),
    (SESSION, {"metadata.name": "1chat"}, "metadata.name", "start with a letter"),
    (SESSION, {"metadata.name": "my.chat"}, "metadata.name", "rename the session"),
    (SESSION, {"metadata.name": "Chat"}, "metadata.name", "lower case"),
    (SESSION, {"spec": DROP}, "spec", "Required value"),
    (SESSION, {"spec.model": DROP}, "spec.model", "Required value"),
    (SESSION, {"spec.tier": DROP}, "spec.tier", "Required value"),
    (SESSION, {"spec.model": ""}, "spec.model", "at least 1 chars long"),
    (SESSION, {"spec.model": "Smol LM"}, "spec.model", "see kubectl get llmmodels"),
    (SESSION, {"spec.model": "m" * 64}, "spec.model", "Too long: may not be more than 63"),
    (SESSION, {"spec.tier": "Gold"}, "spec.tier", "see kubectl get qostiers"),
    (SESSION, {"spec.tier": 1}, "spec.tier", "must be of type string"),
    (SESSION, {"spec.colour": "green"}, "spec.colour", "unknown field"),
    (SESSION, {"spec.contextLength": 0}, "spec.contextLength", "greater than or equal to 1"),
    (SESSION, {"spec.contextLength": BIG}, "spec.contextLength", "less than or equal to"),
    (SESSION, {"spec.contextLength": 1.5}, "spec.contextLength", "must be of type integer"),
    (SESSION, {"spec.resources.slices": 0}, "spec.resources.slices", "greater than or equal to 1"),
    (SESSION, {"spec.resources.slices": "12"}, "spec.resources.slices", "of type integer"),
    (SESSION, {"spec.resources.share": 0.5}, "spec.resources.share", "of type integer"),
    (SESSION, {"spec.resources.share": BIG}, "spec.resources.share", "less than or equal to"),
    (SESSION, {"spec.resources.maxShards": 17}, "spec.resources.maxShards", "or equal to 16"),
    (SESSION, {"spec.placement.spreading": "Both"}, "spec.placement.spreading", '"Pack", "Spread"'),
    (SESSION, {"spec.placement.gpuModels": "A100"}, "spec.placement.gpuModels", "of type array"),
    (SESSION, {"spec.placement.gpuModels": ["A", "A"]}, "spec.placement.gpuModels", "Duplicate"),
    (
        SESSION,
        {"spec.placement.nodeSelector": {f"k{n}": "v" for n in range(17)}},
        "spec.placement.nodeSelector",
        "must have at most 16",
    ),
    (SESSION, {"spec.suspend": "yes"}, "spec.suspend", "must be of type boolean"),
    (SESSION, {"spec.idle": {"action": "Pause"}}, "spec.idle.afterSeconds", "must be 1 or more"),
    (SESSION, {"spec.idle": {"action": "Sleep"}}, "spec.idle.action", '"None", "Pause"'),
    (SESSION, {"spec.idle": {"afterSeconds": -1}}, "spec.idle.afterSeconds", "or equal to 0"),
    (SESSION, {"spec.snapshot.policy": "Keep"}, "spec.snapshot.policy", '"Delete", "Retain"'),
    (SESSION, {"spec.snapshot.checkpointTokens": 0}, "checkpointTokens", "or equal to 1"),
    (SESSION, {"spec.apiKeySecretRef": {}}, "spec.apiKeySecretRef.name", "Required value"),
    (SESSION, {"spec.apiKeySecretRef": "key"}, "spec.apiKeySecretRef", "of type object"),
    (SESSION, template(imagePullPolicy="Sometimes"), "imagePullPolicy", '"IfNotPresent"'),
    (SESSION, template(labels={"sojourn.dev/tier": "gold"}), "spec.template.labels", "remove"),
    (SESSION, template(annotations={"sojourn.dev/tier": "gold"}), "annotations", "remove these"),
    (SESSION, one("env", {"name": "SOJOURN_TIER"}), "spec.template.env", "use another name"),
    (
        SESSION,
        one("env", {"name": "A", "value": "b", "valueFrom": {"fieldRef": {}}}),
        "spec.template.env",
        "not both; remove one",
    ),
    (SESSION, template(env=[{"name": "A"}, {"name": "A"}]), "spec.template.env[1]", "Duplicate"),
    (SESSION, one("tolerations", {"value": "x"}), "spec.template.tolerations", "add key"),
    (
        SESSION,
        one("tolerations", {"key": "k", "operator": "Exists", "value": "x"}),
        "spec.template.tolerations",
        "use operator Equal",
    ),
    (
        SESSION,
        template(resources={"limits": {"sojourn.dev/gpu-0": 80}}),
        "spec.template.resources.limits",
        "use spec.resources.slices",
    ),
    (
        SESSION,
        template(resources={"requests": {"sojourn.dev/gpu-0": 80}}),
        "spec.template.resources.requests",
        "use spec.resources.slices",
    ),
    (SESSION, one("volumes", {"name": "v"}), "spec.template.volumes", "give exactly one of"),
    (
        SESSION,
        one("volumes", {"name": "v", "hostPath": {"path": "/"}}),
        "spec.template.volumes[0].hostPath",
        "unknown field",
    ),
    (
        SESSION,
        one("volumes", {"name": "v", "secret": {}, "configMap": {}}),
        "spec.template.volumes",
        "give exactly one of",
    ),
    (
        SESSION,
        one("volumes", {"name": "sojourn-store", "secret": {}}),
        "volumes",
        "use another name",
    ),
    (SESSION, one("volumeMounts", {"name": "v", "mountPath": "c"}), MOUNT, "start it with a slash"),
    (
        SESSION,
        one("volumeMounts", {"name": "v", "mountPath": "/run/sojourn/gpu-0/all"}),
        MOUNT,
        "mount it elsewhere",
    ),
    (MODEL, {"metadata.name": "m" * 64}, "metadata.name", "choose a shorter name"),
    (MODEL, {"spec.uri": "/models/a.gguf"}, "spec.uri", "e.g. file:///"),
    (MODEL, {"spec.uri": DROP}, "spec.uri", "Required value"),
    (MODEL, {"spec.digest": "sha256:1234"}, "spec.digest", "sojourn-runtime inspect"),
    (MODEL, {"spec.quantization": "int4"}, "spec.quantization", "sojourn-runtime calibrate"),
    (MODEL, {"spec.quantization": "plan.json"}, "spec.quantization", "the absolute path"),
    (MODEL, {"spec.weightBytes": "256Mi"}, "spec.weightBytes", "of type integer"),
    (MODEL, {"spec.kvBytesPerToken": 0}, "spec.kvBytesPerToken", "or equal to 1"),
    (MODEL, {"spec.kvHeads": 2}, "spec.kvHeads", "copy both from the model's config"),
    (MODEL, {"spec.kvHeads": 18}, "spec.kvHeads", "must divide spec.heads"),
    (MODEL, {"spec.layers": DROP}, "spec.layers", "Required value"),
    (MODEL, {"spec.decodeFraction": 1001}, "spec.decodeFraction", "less than or equal to 1000"),
    (MODEL, {"spec.decodeFraction": 0.25}, "spec.decodeFraction", "of type integer"),
    (TIER, {"metadata.name": "tier.one"}, "metadata.name", "rename the tier"),
    (TIER, {"spec.priority": DROP}, "spec.priority", "Required value"),
    (TIER, {"spec.priority": -1}, "spec.priority", "greater than or equal to 0"),
    (TIER, {"spec.priority": 1_000_000}, "spec.priority", "lower it"),
    (TIER, {"spec.pausableBy": ["good"]}, "spec.pausableBy", "must not contain the tier itself"),
    (TIER, {"metadata.name": "gold", "spec.pausableBy": ["x"]}, "spec.pausableBy", "for gold"),
    (TIER, {"spec.pausableBy": ["Gold"]}, "spec.pausableBy[0]", "see kubectl get qostiers"),
    (TIER, {"spec.pausableBy": ["a", "a"]}, "spec.pausableBy", "Duplicate value"),
    (TIER, {"spec.target": {}}, "spec.target.p95Milliseconds", "Required value"),
    (
        TIER,
        {"spec.target": {"p95Milliseconds": 1, "metric": "Speed"}},
        "spec.target.metric",
        '"TimeToFirstToken", "InterTokenLatency"',
    ),
    (TIER, {"spec.timeSliceMilliseconds": 0}, "spec.timeSliceMilliseconds", "or equal to 1"),
    (TENANT, {"spec.namespaces": []}, "spec.namespaces", "at least 1 items"),
    (TENANT, {"spec.namespaces": ["team-*"]}, "spec.namespaces[0]", "list each one"),
    (TENANT, {"spec.namespaces": ["a", "a"]}, "spec.namespaces", "Duplicate value"),
    (TENANT, {"spec.tiers": DROP}, "spec.tiers", "Required value"),
    (TENANT, {"spec.tiers": ["silver"]}, "spec.guarantees", "add the tier to spec.tiers"),
    (TENANT, {"spec.quota": {"share": 2499}}, "spec.quota", "raise the quota"),
    (TENANT, {"spec.quota": {"slices": -1}}, "spec.quota.slices", "or equal to 0"),
    (TENANT, {"spec.weight": 0}, "spec.weight", "greater than or equal to 1"),
    (TENANT, {"spec.guarantees": [{"tier": "gold"}]}, "spec.guarantees[0].share", "Required value"),
    (SNAPSHOT, {"metadata.name": "other-1"}, "metadata.name", "rename the object"),
    (SNAPSHOT, {"metadata.name": "good-01"}, "metadata.name", "SESSION-EPOCH"),
    (SNAPSHOT, {"spec.epoch": 0}, "spec.epoch", "greater than or equal to 1"),
    (SNAPSHOT, {"spec.uri": DROP}, "spec.uri", "Required value"),
    (SNAPSHOT, {"spec.tokens": -1}, "spec.tokens", "greater than or equal to 0"),
    (NODE, {"spec": {"gpus": 2}}, "spec", "unknown field"),
]


@pytest.mark.parametrize(
    ("kind", "changes", "field", "remedy"),
    MALFORMED,
    ids=[f"{row[0]}-{row[2]}-{number}" for number, row in enumerate(MALFORMED)],
)
def test_a_malformed_object_is_refused_by_field_and_remedy(
    kinds: Kinds, kind: str, changes: dict[str, Any], field: str, remedy: str
) -> None:
    with pytest.raises(client.ApiException) as refused:
        kinds.create(good(kind, **changes))
    said = refusal(refused.value)
    assert field in said
    assert remedy in said


# kind, the object as it was, as it shall become, and what the answer says
FIXED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "model": (SESSION, {}, {"spec.model": "other"}, "create a new LLMSession for another model"),
    "tier": (SESSION, {}, {"spec.tier": "gold"}, "create a new LLMSession in the other tier"),
    "layers": (MODEL, {}, {"spec.layers": 31}, "create a new LLMModel"),
    "digest": (
        MODEL,
        {"spec.digest": "sha256:" + "a" * 64},
        {"spec.digest": "sha256:" + "b" * 64},
        "create a new LLMModel",
    ),
    "quantization": (MODEL, {}, {"spec.quantization": "w8a8"}, "create a new LLMModel"),
    "no quantization": (
        MODEL,
        {"spec.quantization": "w8a8"},
        {"spec.quantization": DROP},
        "create a new LLMModel",
    ),
    "no digest": (
        MODEL,
        {"spec.digest": "sha256:" + "a" * 64},
        {"spec.digest": DROP},
        "create a new LLMModel",
    ),
    "snapshot": (SNAPSHOT, {}, {"spec.tokens": 11}, "delete the object"),
    "less snapshot": (SNAPSHOT, {}, {"spec.tokens": DROP}, "delete the object"),
}


@pytest.fixture
def kept(kinds: Kinds, control_plane: Api) -> Iterator[Kinds]:
    """Objects made by a test are deleted after it."""
    yield kinds
    for kind in (SESSION, MODEL, SNAPSHOT):
        options = ["-n", "default"] if kind in NAMESPACED else []
        control_plane.kubectl("delete", PLURALS[kind], "--all", *options)


@pytest.mark.parametrize("case", sorted(FIXED))
def test_what_saved_contexts_depend_on_cannot_be_changed(kept: Kinds, case: str) -> None:
    kind, before, after, remedy = FIXED[case]
    created = kept.create(good(kind, **before), keep=True)
    with pytest.raises(client.ApiException) as refused:
        kept.replace(changed(created, after))
    assert remedy in refusal(refused.value)


@pytest.mark.parametrize("field", ["model", "tier"])
def test_a_fixed_field_cannot_be_removed_and_added_again(kept: Kinds, field: str) -> None:
    created = kept.create(good(SESSION), keep=True)
    with pytest.raises(client.ApiException) as refused:
        kept.replace(changed(created, {f"spec.{field}": DROP}))
    assert f"spec.{field}: Required value" in refusal(refused.value)


def test_the_context_cannot_be_cut_by_removing_its_length_first(kept: Kinds) -> None:
    created = kept.create(good(SESSION, **{"spec.contextLength": 4096}), keep=True)
    kept.served(created, context_length=4096)
    grown = kept.replace(changed(kept.read(created), {"spec.contextLength": DROP}))
    with pytest.raises(client.ApiException) as refused:
        kept.replace(changed(grown, {"spec.contextLength": 2048}))
    assert "spec.contextLength cannot be reduced" in refusal(refused.value)


def test_a_context_length_that_no_start_had_may_be_taken_back(kept: Kinds) -> None:
    """One too large for the model would else keep its session from ever starting again."""
    created = kept.create(good(SESSION, **{"spec.contextLength": 100_000}), keep=True)
    lowered = kept.replace(changed(created, {"spec.contextLength": 4096}))
    kept.served(lowered, context_length=4096)
    raised = kept.replace(changed(kept.read(lowered), {"spec.contextLength": 100_000}))
    assert kept.replace(changed(raised, {"spec.contextLength": 8192}))["spec"]["contextLength"]


def test_the_context_may_grow_and_the_session_be_suspended(kept: Kinds) -> None:
    created = kept.create(good(SESSION, **{"spec.contextLength": 4096}), keep=True)
    changes = {"spec.contextLength": 8192, "spec.suspend": True}
    assert kept.replace(changed(created, changes))["spec"]["suspend"] is True


def test_columns_are_filled_before_anyone_looked(kept: Kinds, control_plane: Api) -> None:
    kept.create(good(SESSION), keep=True)
    head, row = control_plane.kubectl("get", "llms", "-n", "default").splitlines()
    assert " ".join(head.split()) == "NAME MODEL TIER READY REASON NODE GPU ENDPOINT AGE"
    assert row.split()[:5] == ["good", "smollm2", "silver", "Unknown", "Pending"]


def test_the_category_lists_all_kinds(kept: Kinds, control_plane: Api) -> None:
    kept.create(good(SESSION), keep=True)
    kept.create(good(MODEL), keep=True)
    listed = control_plane.kubectl("get", names.CATEGORY, "-n", "default", "-o", "name").split()
    assert listed == ["llmmodel.sojourn.dev/good", "llmsession.sojourn.dev/good"]


def test_kubectl_explain_describes_a_field(control_plane: Api, kinds: Kinds) -> None:
    assert kinds
    said = control_plane.kubectl("explain", "llmsession.spec.resources.slices")
    assert "Memory slices (1 GiB unless" in said


def changed(raw: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(raw)
    for path, value in changes.items():
        _, field = path.split(".")
        if value is DROP:
            found["spec"].pop(field)
        else:
            found["spec"][field] = value
    return found


def test_the_examples_are_read_from_files() -> None:
    """Else the parametrised test above would pass over an empty folder."""
    kinds = {
        document["kind"]
        for path in (ROOT / "examples").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
    }
    assert {"LLMModel", "LLMSession", "Tenant", "Secret"} <= kinds
