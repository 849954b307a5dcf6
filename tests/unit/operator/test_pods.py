"""The session's pod, as a value: exactly what the runtime, the kubelet and the policies expect."""

import json
from typing import Any

import pytest
from sojourn_api import names
from sojourn_api.objects import (
    GpuPlace,
    LatencyMetric,
    Model,
    ObjectMeta,
    SecretKey,
    Session,
    SessionPlacement,
    SessionSpec,
    Tier,
)
from sojourn_api.weights import Numbers
from sojourn_operator.act import pods
from sojourn_operator.config import Config


def meta(name: str, namespace: str = "") -> ObjectMeta:
    created = "2026-01-01T00:00:00Z"
    return ObjectMeta(
        name=name, namespace=namespace, uid=f"uid-{name}", generation=1, created=created
    )


MODEL = Model(
    meta("smollm2"),
    uri="file:///var/lib/sojourn/models/smollm2.gguf",
    weight_bytes=270_000_000,
    kv_bytes_per_token=20_000,
    layers=30,
    heads=9,
    kv_heads=3,
    context_length=8192,
    digest="sha256:" + "a" * 64,
)
TIER = Tier(
    meta("silver"),
    priority=500,
    guaranteed_share=1000,
    target_p95_ms=350,
    target_metric=LatencyMetric.TIME_TO_FIRST_TOKEN,
    pausable_by=("gold",),
)
PLACE = SessionPlacement(
    "node-a",
    (
        GpuPlace(ordinal=0, uuid="GPU-0", model="A100-80GB", slices=12, share=300),
        GpuPlace(ordinal=3, uuid="GPU-3", model="A100-80GB", slices=12, share=300),
    ),
)


ALL_GPUS = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def built(config: Config | None = None, *, model: Model = MODEL, **spec: Any) -> dict[str, Any]:
    session = Session(meta("chat", "team"), SessionSpec(model="smollm2", tier="silver", **spec))
    start = pods.Start(session, model, TIER, PLACE, 7)
    return pods.build(start, config=config or Config(device="cpu", session_image="runtime:1"))


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry) for entry in container(pod)["env"]}


def test_the_whole_metadata() -> None:
    found = built()["metadata"]
    gpus = json.loads(found["annotations"].pop("sojourn.dev/gpus"))
    assert gpus == [
        {"ordinal": 0, "uuid": "GPU-0", "slices": 12, "share": 300},
        {"ordinal": 3, "uuid": "GPU-3", "slices": 12, "share": 300},
    ]
    assert found == {
        "name": "chat-7",
        "namespace": "team",
        "labels": {
            "app.kubernetes.io/managed-by": "sojourn-operator",
            "sojourn.dev/session": "chat",
            "sojourn.dev/tier": "silver",
            "sojourn.dev/epoch": "7",
        },
        "annotations": {
            "sojourn.dev/tier": "silver",
            "sojourn.dev/priority": "500",
            "sojourn.dev/time-slice": "50",
            "sojourn.dev/share": "600",
            "sojourn.dev/context-length": str(MODEL.context_length),
        },
        "finalizers": ["sojourn.dev/record-end"],
        "ownerReferences": [
            {
                "apiVersion": "sojourn.dev/v1alpha1",
                "kind": "LLMSession",
                "name": "chat",
                "uid": "uid-chat",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def test_it_is_told_which_manifest_its_store_must_have() -> None:
    session = Session(meta("chat", "team"), SessionSpec(model="smollm2", tier="silver"))
    start = pods.Start(session, MODEL, TIER, PLACE, 7, manifest="manifest-6-12.json")
    found = env(pods.build(start, config=Config(device="cpu")))
    assert found["SOJOURN_EXPECT_MANIFEST"] == "manifest-6-12.json"
    assert "SOJOURN_EXPECT_MANIFEST" not in env(built()), "a first start expects nothing"


def test_two_gpus_are_two_resources_in_limits_and_requests() -> None:
    found = container(built())["resources"]
    gpus = {"sojourn.dev/gpu-0": "12", "sojourn.dev/gpu-3": "12"}
    assert found == {"limits": gpus, "requests": gpus}


def test_it_is_bound_to_its_node_by_affinity() -> None:
    affinity = built()["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    field = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
    assert term == {"matchFields": [field]}


def test_it_passes_the_restricted_level() -> None:
    pod = built()
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["shareProcessNamespace"] is True
    assert all("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])


def test_it_tells_the_runtime_all_it_has_to_know() -> None:
    assert env(built(context_length=4096, checkpoint_tokens=128)) == {
        names.ENV_SESSION: "chat",
        names.ENV_NAMESPACE: "team",
        names.ENV_EPOCH: "7",
        names.ENV_OWNER: "2026-01-01T00:00:00Z/uid-chat",
        names.ENV_TIER: "silver",
        names.ENV_PRIORITY: "500",
        names.ENV_MODEL: MODEL.uri,
        names.ENV_MODEL_NAME: "smollm2",
        names.ENV_MODEL_NUMBERS: json.dumps(Numbers.of(MODEL).to_json(), separators=(",", ":")),
        names.ENV_QUANTIZATION: MODEL.quantization,
        names.ENV_WEIGHTS_DIGEST: MODEL.digest,
        names.ENV_WEIGHTS_CACHE: "/var/cache/sojourn",
        names.ENV_STORE: "file:///var/lib/sojourn/store",
        names.ENV_CONTEXT_LENGTH: "4096",
        names.ENV_CHECKPOINT_TOKENS: "128",
        names.ENV_DEVICE: "cpu",
        names.ENV_PORT: "8000",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }


def test_cuda_sees_the_granted_gpus_only_and_a_cpu_session_none() -> None:
    found = env(built(Config(device="cuda")))
    assert (found["CUDA_VISIBLE_DEVICES"], found[names.ENV_SHARDS]) == ("GPU-0,GPU-3", "2")
    assert {"CUDA_VISIBLE_DEVICES", names.ENV_SHARDS}.isdisjoint(env(built()))
    eager = env(built(Config(device="cuda-eager")))
    assert eager["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-3"


def test_nvidias_runtime_is_asked_for_the_granted_gpus_and_the_drivers_libraries() -> None:
    """Whatever the image asks for: those of CUDA ask for all."""
    found = env(built(Config(device="cuda"), template={"env": [ALL_GPUS]}))
    assert found["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-3"
    assert found["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert env(built(template={"env": [ALL_GPUS]}))["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_session_on_a_gpu_runs_under_the_runtime_class_that_brings_the_libraries() -> None:
    nvidia = Config(device="cuda", runtime_class_name="nvidia")
    assert built(nvidia)["spec"]["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in built(Config(device="cuda"))["spec"]


def test_the_api_key_is_never_a_plain_value() -> None:
    found = env(built(api_key=SecretKey("keys", "chat")))[names.ENV_API_KEY]
    assert found["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "chat"}}


def test_it_sees_its_own_folder_of_the_store_and_no_other() -> None:
    mounts = {mount["mountPath"]: mount for mount in container(built())["volumeMounts"]}
    assert mounts["/var/lib/sojourn/store"]["subPath"] == "team/chat"
    assert mounts["/var/cache/sojourn"]["subPath"] == "team/.cache"
    assert mounts["/var/lib/sojourn/models"]["readOnly"] is True


def test_an_object_store_is_named_with_the_sessions_own_path_and_not_mounted() -> None:
    pod = built(Config(device="cpu", store_uri="s3://contexts/prod"))
    assert env(pod)[names.ENV_STORE] == "s3://contexts/prod/team/chat"
    paths = {mount["mountPath"] for mount in container(pod)["volumeMounts"]}
    assert "/var/lib/sojourn/store" not in paths


def test_the_template_is_merged() -> None:
    pod = built(
        template={
            "image": "mine:2",
            "imagePullPolicy": "Always",
            "imagePullSecrets": [{"name": "registry"}],
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}},
            "env": [{"name": "LOG", "value": "debug"}],
            "volumes": [{"name": "extra", "persistentVolumeClaim": {"claimName": "extra"}}],
            "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
            "labels": {"team": "a"},
            "annotations": {"note": "b"},
            "priorityClassName": "own-class",
        }
    )
    gpus = {"sojourn.dev/gpu-0": "12", "sojourn.dev/gpu-3": "12"}
    assert container(pod)["image"] == "mine:2"
    assert container(pod)["imagePullPolicy"] == "Always"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert container(pod)["resources"] == {
        "requests": {"cpu": "2"} | gpus,
        "limits": {"memory": "8Gi"} | gpus,
    }
    assert env(pod)["LOG"] == "debug"
    assert pod["spec"]["volumes"][-1]["name"] == "extra"
    assert container(pod)["volumeMounts"][-1]["mountPath"] == "/extra"
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "b"
    assert pod["spec"]["priorityClassName"] == "own-class"
    assert pod["spec"]["preemptionPolicy"] == "Never"


def test_without_a_priority_class_the_policy_is_left_to_the_api_server() -> None:
    """It refuses `Never` where no class says so."""
    assert "preemptionPolicy" not in built()["spec"]
    classed = built(Config(device="cpu", priority_class_name="sojourn-session"))["spec"]
    assert classed["priorityClassName"] == "sojourn-session"
    assert classed["preemptionPolicy"] == "Never"


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [(8192, 30), (1_000_000, 106), (1_000_000_000, 3600)],
    ids=["never under 30 s", "the bytes at the store's speed", "never over an hour"],
)
def test_the_grace_period_follows_from_the_bytes_to_save(tokens: int, seconds: int) -> None:
    spec = built(context_length=tokens)["spec"]
    assert spec["terminationGracePeriodSeconds"] == seconds


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"env": [{"name": "SOJOURN_STORE", "value": "x"}]}, "SOJOURN_STORE"),
        ({"labels": {"sojourn.dev/tier": "gold"}}, "sojourn.dev/tier"),
        ({"annotations": {"sojourn.dev/priority": "9"}}, "sojourn.dev/priority"),
        ({"volumes": [{"name": "sojourn-store"}]}, "sojourn-store"),
        ({"volumeMounts": [{"name": "x", "mountPath": "/run/sojourn/gpu-0"}]}, "/run/sojourn"),
        ({"resources": {"limits": {"sojourn.dev/gpu-1": 5}}}, "sojourn.dev/gpu-1"),
        ({"resources": {"requests": {"sojourn.dev/mig-1g.10gb": 1}}}, "sojourn.dev/mig-1g.10gb"),
    ],
)
def test_what_a_template_may_not_say_is_named(template: dict[str, Any], named: str) -> None:
    problem = pods.template_problem(template)
    assert problem.startswith("spec.template.")
    assert named in problem


def test_a_harmless_template_has_no_problem() -> None:
    harmless = {"env": [{"name": "LOG", "value": "x"}], "labels": {"app": "chat"}}
    assert pods.template_problem(harmless) == ""
