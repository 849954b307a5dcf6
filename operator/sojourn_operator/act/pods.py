"""The pod of one start of a session, as a value; and what a user's template may not say.

Pure: nobody is asked, nothing is created. All of it passes the `restricted` Pod Security level.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from sojourn_api import names
from sojourn_api.objects import Model, SecretKey, Session, SessionPlacement, Tier
from sojourn_api.quantity import quantity
from sojourn_api.reader import Invalid
from sojourn_api.weights import Numbers

from sojourn_operator import wants
from sojourn_operator.config import Config
from sojourn_operator.kinds import SESSIONS

Raw = dict[str, Any]

USER: Final = 65532
"""The user `nonroot` of distroless images; the store's folders are group-writable for it."""
MIN_GRACE_SECONDS: Final = 30
MAX_GRACE_SECONDS: Final = 3600
GRACE_MARGIN_SECONDS: Final = 10
"""For the token boundary, the manifest and the fsyncs around the bytes."""
START_SECONDS: Final = 120
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = f"{names.GROUP}/"
RESERVED_ENV: Final = "SOJOURN_"
NVIDIA_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
"""By this NVIDIA's container runtime chooses GPUs, and whether it brings the driver's libraries."""
NO_DEVICES: Final = "void"
"""None of both, whatever the image asks for."""
STORE_VOLUME: Final = "sojourn-store"
MODELS_VOLUME: Final = "sojourn-models"
OUR_MOUNTS: Final = (names.STORE_MOUNT, names.MODELS_MOUNT, names.CACHE_MOUNT, names.ARBITER_DIR)


POD_SECURITY: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of a session is made of."""

    session: Session
    model: Model
    tier: Tier
    placement: SessionPlacement
    epoch: int
    tenant: str = ""
    tenant_key: SecretKey | None = None
    """For a session that names no API key of its own."""
    manifest: str = ""
    """The last one that is known to be in its store; empty: there may be none."""

    @property
    def context_length(self) -> int:
        """Tokens that it holds at most."""
        return wants.context_length(self.session, self.model)


def build(start: Start, *, config: Config) -> Raw:
    """The pod of this start."""
    template = start.session.spec.template
    meta = start.session.meta
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(meta.name, start.epoch),
            "namespace": meta.namespace,
            "labels": {**_strings(template, "labels"), **_labels(start)},
            "annotations": {**_strings(template, "annotations"), **_annotations(start)},
            "finalizers": [names.FINALIZER_POD],
            "ownerReferences": [owner(start.session, controller=True)],
        },
        "spec": _spec(start, template, config=config),
    }


def owner(session: Session, *, controller: bool) -> Raw:
    """An owner reference to the session; a controlled pod is drained without `--force`."""
    return {
        "apiVersion": SESSIONS.api_version,
        "kind": SESSIONS.name,
        "name": session.meta.name,
        "uid": session.meta.uid,
        "controller": controller,
        "blockOwnerDeletion": controller,
    }


def tolerations(session: Session) -> list[Raw]:
    """As the session's template has them."""
    return _items(session.spec.template, "tolerations")


def pull_secrets(session: Session) -> list[Raw]:
    """As the session's template has them."""
    return _items(session.spec.template, "imagePullSecrets")


def grace_seconds(start: Start, *, config: Config) -> int:
    """Long enough to write the whole context once, whatever was written before."""
    saving = -(
        -start.context_length * start.model.kv_bytes_per_token // config.store_bytes_per_second
    )
    return max(MIN_GRACE_SECONDS, min(saving + GRACE_MARGIN_SECONDS, MAX_GRACE_SECONDS))


def template_problem(template: Mapping[str, object]) -> str:
    """Why this pod template cannot be merged, naming the field; empty if it can."""
    checks = (
        _env_problem,
        _key_problem,
        _volume_problem,
        _mount_problem,
        _resource_problem,
        _quantity_problem,
    )
    return next((problem for check in checks if (problem := check(template))), "")


def _env_problem(template: Mapping[str, object]) -> str:
    for entry in _items(template, "env"):
        name = str(entry.get("name", ""))
        if name.startswith(RESERVED_ENV):
            return f"spec.template.env: {name} is set by the operator; remove it"
    return ""


def _key_problem(template: Mapping[str, object]) -> str:
    for field in ("labels", "annotations"):
        for key in _strings(template, field):
            if key.startswith(OURS) or key == MANAGED_BY:
                return f"spec.template.{field}: {key} is set by the operator; remove it"
    return ""


def _volume_problem(template: Mapping[str, object]) -> str:
    for entry in _items(template, "volumes"):
        if entry.get("name") in (STORE_VOLUME, MODELS_VOLUME):
            return f"spec.template.volumes: {entry['name']} is the operator's; choose another name"
    return ""


def _mount_problem(template: Mapping[str, object]) -> str:
    for entry in _items(template, "volumeMounts"):
        path = str(entry.get("mountPath", "")).rstrip("/")
        if any(path == ours or path.startswith(f"{ours}/") for ours in OUR_MOUNTS):
            return f"spec.template.volumeMounts: {path} is used by the operator; mount elsewhere"
    return ""


def _resource_problem(template: Mapping[str, object]) -> str:
    for amounts in _mapping(template, "resources").values():
        for resource in amounts if isinstance(amounts, Mapping) else ():
            if str(resource).startswith((names.RESOURCE_PREFIX, names.MIG_PREFIX)):
                hint = "ask for GPU memory by spec.resources.slices"
                return f"spec.template.resources: {resource} is counted by the operator; {hint}"
    return ""


def _quantity_problem(template: Mapping[str, object]) -> str:
    resources = _mapping(template, "resources")
    for part in ("requests", "limits"):
        for name, amount in _mapping(resources, part).items():
            path = f"spec.template.resources.{part}.{name}"
            try:
                value = quantity(str(amount), path)
            except Invalid as error:
                return str(error)
            if value < 0:
                return f"{path}: must not be below 0, as {amount} is; write 2, 500m or 64Gi"
    return ""


def _labels(start: Start) -> dict[str, str]:
    labels = {
        MANAGED_BY: names.MANAGER_OPERATOR,
        names.LABEL_SESSION: start.session.meta.name,
        names.LABEL_TIER: start.tier.meta.name,
        names.LABEL_EPOCH: str(start.epoch),
    }
    return labels | ({names.LABEL_TENANT: start.tenant} if start.tenant else {})


def _annotations(start: Start) -> dict[str, str]:
    gpus = [
        {"ordinal": gpu.ordinal, "uuid": gpu.uuid, "slices": gpu.slices, "share": gpu.share}
        for gpu in start.placement.gpus
    ]
    return {
        names.ANNOTATION_TIER: start.tier.meta.name,
        names.ANNOTATION_PRIORITY: str(start.tier.priority),
        names.ANNOTATION_TIME_SLICE: str(start.tier.time_slice_ms),
        names.ANNOTATION_SHARE: str(sum(gpu.share for gpu in start.placement.gpus)),
        names.ANNOTATION_GPUS: json.dumps(gpus, separators=(",", ":")),
        names.ANNOTATION_CONTEXT_LENGTH: str(start.context_length),
    }


def _spec(start: Start, template: Mapping[str, object], *, config: Config) -> Raw:
    spec: Raw = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(start, config=config),
        "enableServiceLinks": False,
        # Else the runtime is process 1, to which the kernel does not deliver a SIGTERM that comes
        # before its handler is there: a pause of a start would last for the whole grace period.
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "affinity": {"nodeAffinity": _on_node(start.placement.node)},
        "securityContext": POD_SECURITY,
        "tolerations": tolerations(start.session),
        "imagePullSecrets": pull_secrets(start.session),
        "volumes": _volumes(template, config=config),
        "containers": [_container(start, template, config=config)],
    }
    priority_class = template.get("priorityClassName") or config.priority_class_name
    if priority_class:
        # kube-scheduler must not preempt by its own rules. The API server takes this only with a
        # class that says the same; without a class the priority is 0, which preempts none of ours.
        spec |= {"priorityClassName": priority_class, "preemptionPolicy": "Never"}
    if config.runtime_class_name:
        spec["runtimeClassName"] = config.runtime_class_name
    return spec


def _on_node(node: str) -> Raw:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _container(start: Start, template: Mapping[str, object], *, config: Config) -> Raw:
    policy = template.get("imagePullPolicy") or config.session_image_pull_policy
    return {
        "name": names.CONTAINER,
        "image": template.get("image") or config.session_image,
        "imagePullPolicy": policy,
        "command": ["sojourn-runtime", "serve"],
        "ports": [{"name": names.PORT_NAME, "containerPort": names.PORT}],
        "env": _env(start, template, config=config),
        "resources": _resources(start, template),
        "volumeMounts": _mounts(start, template, config=config),
        "startupProbe": _probe(names.PATH_HEALTH, period=1, failures=START_SECONDS),
        "livenessProbe": _probe(names.PATH_HEALTH, period=10, failures=6),
        "readinessProbe": _probe(names.PATH_READY, period=1, failures=2),
        "terminationMessagePath": names.TERMINATION_MESSAGE,
        "terminationMessagePolicy": "File",
        "securityContext": CONTAINER_SECURITY,
    }


def _probe(path: str, *, period: int, failures: int) -> Raw:
    return {
        "httpGet": {"path": path, "port": names.PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }


def _env(start: Start, template: Mapping[str, object], *, config: Config) -> list[Raw]:
    session, model = start.session, start.model
    values = {
        names.ENV_SESSION: session.meta.name,
        names.ENV_NAMESPACE: session.meta.namespace,
        names.ENV_EPOCH: str(start.epoch),
        names.ENV_OWNER: names.owner(created=session.meta.created, uid=session.meta.uid),
        names.ENV_TIER: start.tier.meta.name,
        names.ENV_PRIORITY: str(start.tier.priority),
        names.ENV_MODEL: model.uri,
        names.ENV_MODEL_NAME: model.meta.name,
        names.ENV_MODEL_NUMBERS: json.dumps(Numbers.of(model).to_json(), separators=(",", ":")),
        names.ENV_QUANTIZATION: model.quantization,
        names.ENV_WEIGHTS_DIGEST: model.digest,
        names.ENV_WEIGHTS_CACHE: names.CACHE_MOUNT,
        names.ENV_STORE: _store(session, config=config),
        names.ENV_EXPECT_MANIFEST: start.manifest,
        names.ENV_CONTEXT_LENGTH: str(start.context_length),
        names.ENV_CHECKPOINT_TOKENS: str(session.spec.checkpoint_tokens),
        names.ENV_DEVICE: config.device,
        names.ENV_PORT: str(names.PORT),
        NVIDIA_DEVICES: NO_DEVICES,
    }
    if config.device in ("cuda", "cuda-eager"):
        uuids = ",".join(gpu.uuid for gpu in start.placement.gpus)
        values["CUDA_VISIBLE_DEVICES"] = uuids
        values[NVIDIA_DEVICES] = uuids
        values["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
        values[names.ENV_SHARDS] = str(len(start.placement.gpus) or 1)
    env: list[Raw] = [{"name": name, "value": value} for name, value in values.items() if value]
    key = session.spec.api_key or start.tenant_key
    if key is not None:
        source = {"secretKeyRef": {"name": key.name, "key": key.key}}
        env.append({"name": names.ENV_API_KEY, "valueFrom": source})
    taken = {entry["name"] for entry in env}
    extra = [*config.extra_env, *_items(template, "env")]
    return env + [dict(entry) for entry in extra if entry.get("name") not in taken]


def _store(session: Session, *, config: Config) -> str:
    """A mounted store holds this session's folder alone; an object store is told the whole path."""
    if config.file_store:
        return config.store_uri
    return f"{config.store_uri.rstrip('/')}/{session.meta.namespace}/{session.meta.name}"


def _resources(start: Start, template: Mapping[str, object]) -> Raw:
    gpus = {names.gpu_resource(gpu.ordinal): str(gpu.slices) for gpu in start.placement.gpus}
    wished = _mapping(template, "resources")
    return {
        **wished,
        "limits": {**_mapping(wished, "limits"), **gpus},
        "requests": {**_mapping(wished, "requests"), **gpus},
    }


def _volumes(template: Mapping[str, object], *, config: Config) -> list[Raw]:
    models: Raw = {"claimName": config.models_claim, "readOnly": True}
    volumes: list[Raw] = [
        {"name": STORE_VOLUME, "persistentVolumeClaim": {"claimName": config.store_claim}},
        {"name": MODELS_VOLUME, "persistentVolumeClaim": models},
    ]
    return [*volumes, *_copies(config.extra_volumes), *_items(template, "volumes")]


def _mounts(start: Start, template: Mapping[str, object], *, config: Config) -> list[Raw]:
    meta = start.session.meta
    mounts: list[Raw] = [
        {
            "name": STORE_VOLUME,
            "mountPath": names.CACHE_MOUNT,
            "subPath": f"{meta.namespace}/.cache",
        },
        {"name": MODELS_VOLUME, "mountPath": names.MODELS_MOUNT, "readOnly": True},
    ]
    if config.file_store:
        own = {"mountPath": names.STORE_MOUNT, "subPath": f"{meta.namespace}/{meta.name}"}
        mounts.insert(0, {"name": STORE_VOLUME, **own})
    return [*mounts, *_copies(config.extra_volume_mounts), *_items(template, "volumeMounts")]


def _copies(entries: Iterable[Mapping[str, Any]]) -> list[Raw]:
    return [dict(entry) for entry in entries]


def _items(template: Mapping[str, object], name: str) -> list[Raw]:
    """A list of objects of the template; the CRD's schema has checked its form."""
    value = template.get(name)
    if not isinstance(value, list):
        return []
    return [dict(entry) for entry in value if isinstance(entry, Mapping)]


def _mapping(template: Mapping[str, object], name: str) -> Raw:
    value = template.get(name)
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def _strings(template: Mapping[str, object], name: str) -> dict[str, str]:
    return {key: str(value) for key, value in _mapping(template, name).items()}
