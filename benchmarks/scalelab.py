"""A whole API server with many simulated nodes, and floods of pods and sessions on it.

etcd, kube-apiserver, kube-scheduler and kwok are those of the tests; the operator is a process of
its own. Nothing is measured here: what happened is read from the audit log, see `audit`.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests" / part) for part in ("cluster", "component/operator", "unit/chart")]

import yaml  # noqa: E402
from audit import Audit  # noqa: E402
from helmchart import render  # noqa: E402
from kubernetes import config as kubernetes_config  # noqa: E402
from localcluster import loopback  # noqa: E402
from operatorrig import MODEL, Operator  # noqa: E402
from sojourn_api import names  # noqa: E402
from sojourn_api.objects import GpuPlace, SessionPlacement  # noqa: E402
from sojourn_api.parse import parse_model, parse_session  # noqa: E402
from sojourn_api.shipped import SHIPPED_TIERS  # noqa: E402
from sojourn_operator.act import pods  # noqa: E402
from sojourn_operator.act.api import Api, NotFoundError  # noqa: E402
from sojourn_operator.config import Config  # noqa: E402
from sojourn_operator.kinds import (  # noqa: E402
    GPU_NODES,
    MODELS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    SESSIONS,
    Kind,
)

Raw = dict[str, Any]
ACCOUNTS = Kind("ServiceAccount", "serviceaccounts", "", "v1")
VOLUMES = Kind("PersistentVolume", "persistentvolumes", "", "v1", namespaced=False)
CLAIMS = Kind("PersistentVolumeClaim", "persistentvolumeclaims", "", "v1")
GPUS = 8
MODELS_OF_GPUS = (("A100-80GB", 80), ("H100", 80), ("L40S", 48), ("A10", 24))
NAMESPACE_COUNT = 10
SLICES, SHARE = 4, 100
"""What each session asks for: eight on a node of A10, if it is not spread out more."""
WRITERS = 8
"""Connections that create at full speed: more did not create faster on two cores."""
ADMIN = "sojourn-benchmark"
OPERATOR = names.MANAGER_OPERATOR
SETTLED_SECONDS = 3.0
ANSWER_SECONDS = 60.0


class Waiting(Api):
    """Waits for a busy machine's answer: the operator would come again, the benchmark would not."""

    def _call(self, method: str, kind: Kind | None, path: str, **rest: Any) -> Raw:
        return super()._call(method, kind, path, **rest | {"seconds": ANSWER_SECONDS})


@dataclass
class Lab:
    """What a run works with."""

    control_plane: loopback.Api
    api: Api
    audit: Audit
    kubeconfig: Path
    """The operator's: with the service account and the rights of its chart."""
    headless: bool = False
    """Whether sessions get Services without an address of their own."""
    operators: list[Operator] = field(default_factory=list)

    def many(self, work: Callable[[Any], object], items: Iterable[Any]) -> None:
        """All at once, over some connections; the first error is raised."""
        with ThreadPoolExecutor(WRITERS) as pool:
            for _ in pool.map(work, items):
                pass

    def operate(self, *, identity: str = "one") -> Operator:
        """One replica; a restart under the same identity need not wait for the Lease."""
        config = self.control_plane.folder / "operator.yaml"
        settings = {"device": "cpu", "headlessServices": self.headless}
        config.write_text(yaml.safe_dump(settings))
        log = self.control_plane.folder / "operator.log"
        operator = Operator(self.kubeconfig, config=config, log=log, identity=identity)
        self.operators.append(operator)
        return operator

    def until(self, done: Callable[[], bool], *, what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                log = self.control_plane.folder / "operator.log"
                tail = log.read_text()[-2000:] if log.exists() else ""
                raise TimeoutError(f"waited {seconds:.0f} s in vain: {what}\n{tail}")
            time.sleep(0.2)
            self.audit.look()

    def settle(self, *, seconds: float = 120) -> None:
        """Until nobody has written anything but Leases for a while."""

        def quiet() -> bool:
            writes = [call.done for call in self.audit.calls[-200:] if call.resource != "leases"]
            return time.time() - max(writes, default=0.0) > SETTLED_SECONDS

        self.until(quiet, what="nobody writes any more", seconds=seconds)

    def count(self, kind: Kind, *, label_selector: str = "") -> int:
        return len(self.api.list(kind, label_selector=label_selector)[0])


@contextlib.contextmanager
def lab(nodes: int, *, headless: bool = False) -> Iterator[Lab]:
    """Up with nodes, a model and namespaces; no operator yet."""
    with contextlib.ExitStack() as stack:
        control_plane = stack.enter_context(loopback.control_plane())
        control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        control_plane.kubectl(
            "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"
        )
        client = kubernetes_config.new_client_from_config(str(control_plane.kubeconfig))
        client.user_agent = ADMIN
        audit, kubeconfig = Audit(control_plane.audit_log), control_plane.folder / "operator.json"
        found = Lab(control_plane, Waiting(client), audit, kubeconfig, headless)
        _furnish(found, nodes=nodes)
        _admit_operator(found)
        stack.enter_context(loopback.scheduler(control_plane))
        stack.enter_context(loopback.simulated_nodes(control_plane))
        yield found
        for operator in found.operators:
            if operator.process.poll() is None:
                operator.stop()


def _furnish(lab: Lab, *, nodes: int) -> None:
    for name in ("sojourn-system", *namespaces()):
        lab.api.create(NAMESPACES, {"metadata": {"name": name}})
        account = {"metadata": {"name": "default", "namespace": name}}
        lab.api.create(ACCOUNTS, account)
        for claim in (Config().store_claim, Config().models_claim):
            _create_claim(lab.api, claim, name)
    lab.api.create(MODELS, model())
    lab.many(lambda number: _create_node(lab.api, number), range(nodes))


def _admit_operator(lab: Lab) -> None:
    """Its service account with a token and the rights that the chart grants."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Lease")
    objects = [raw for (kind, name), raw in render().items() if kind in kinds and name == OPERATOR]
    kubectl = lab.control_plane.kubectl
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    token = kubectl("create", "token", OPERATOR, "-n", "sojourn-system", "--duration=2h").strip()
    raw = yaml.safe_load(lab.control_plane.kubeconfig.read_text())
    raw["users"] = [{"name": user["name"], "user": {"token": token}} for user in raw["users"]]
    lab.kubeconfig.write_text(yaml.safe_dump(raw))


def _create_claim(api: Api, name: str, namespace: str) -> None:
    """A claim with its volume, bound as the controller would: kube-scheduler looks at both."""
    room = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {"metadata": {"name": f"{namespace}-{name}"}}
    claimed = {"name": name, "namespace": namespace}
    folder = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/var/empty"}}
    api.create(VOLUMES, {**volume, "spec": {**room, **folder, "claimRef": claimed}})
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    wish = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"{namespace}-{name}"}
    api.create(CLAIMS, {"metadata": {**claimed, "annotations": bound}, "spec": {**room, **wish}})


def namespaces() -> list[str]:
    return [f"team-{number}" for number in range(NAMESPACE_COUNT)]


def model() -> Raw:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "LLMModel",
        "metadata": {"name": "smollm2"},
        "spec": MODEL,
    }


def _create_node(api: Api, number: int) -> None:
    """As its kubelet and its device plugin would report it."""
    name = f"node-{number:04d}"
    gpu, slices = MODELS_OF_GPUS[number % len(MODELS_OF_GPUS)]
    room = {names.gpu_resource(n): str(slices) for n in range(GPUS)}
    room |= {"cpu": "64", "memory": "512Gi", "pods": "110"}
    api.create(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": _now()}
    status = {"conditions": [ready], "capacity": room, "allocatable": room}
    _patch_status(api, NODES, name, status)
    # The node controller's part: admission taints a new node until it is ready.
    api.patch(NODES, {"spec": {"taints": None}}, name=name)
    body = {"apiVersion": names.API_VERSION, "kind": "GPUNode", "metadata": {"name": name}}
    api.create(GPU_NODES, body)
    gpus = [_gpu(name, ordinal, gpu, slices) for ordinal in range(GPUS)]
    _patch_status(api, GPU_NODES, name, {"driverVersion": "580.1", "gpus": gpus})


def _patch_status(api: Api, kind: Kind, name: str, status: Raw) -> None:
    body = {"metadata": {"name": name}, "status": status}
    api.apply(kind, body, subresource="status")


def _gpu(node: str, ordinal: int, model: str, slices: int) -> Raw:
    return {
        "ordinal": ordinal,
        "uuid": f"GPU-{node}-{ordinal}",
        "model": model,
        "memoryBytes": slices << 30,
        "sliceBytes": 1 << 30,
        "slices": slices,
        "freeSlices": slices,
        "healthy": True,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def session(number: int) -> Raw:
    namespace = namespaces()[number % NAMESPACE_COUNT]
    return {
        "apiVersion": names.API_VERSION,
        "kind": "LLMSession",
        "metadata": {"name": f"s{number:05d}", "namespace": namespace},
        "spec": {
            "model": "smollm2",
            "tier": "silver",
            "resources": {"slices": SLICES, "share": SHARE},
        },
    }


def peer_pod(number: int) -> Raw:
    """The pod that the operator would make of this session, for kube-scheduler to place."""
    raw = session(number)
    raw["metadata"] |= {"uid": f"uid-{number}", "generation": 1}
    tier = next(one for one in SHIPPED_TIERS if one.meta.name == "silver")
    place = SessionPlacement("", (GpuPlace(0, "", "", SLICES, SHARE),))
    start = pods.Start(parse_session(raw), parse_model(model()), tier, place, 1)
    pod = pods.build(start, config=Config(device="cpu"))
    for name in ("ownerReferences", "finalizers"):
        del pod["metadata"][name]
    del pod["spec"]["affinity"]
    return pod


def create_sessions(lab: Lab, numbers: Iterable[int]) -> None:
    lab.many(lambda number: lab.api.create(SESSIONS, session(number)), numbers)


def create_peer_pods(lab: Lab, numbers: Iterable[int]) -> None:
    lab.many(lambda pod: lab.api.create(PODS, pod), [peer_pod(number) for number in numbers])


def remove_pods(lab: Lab) -> None:
    """All of them; kwok ends them at once."""
    lab.many(lambda meta: _remove(lab.api, PODS, meta), _metas(lab, PODS))
    lab.until(lambda: not lab.count(PODS), what="all pods are gone", seconds=300)


def remove_sessions(lab: Lab, *, keep: int) -> None:
    """By force and without an operator, with their pods and Services, down to `keep`."""
    gone = {
        f"{meta['namespace']}/{meta['name']}"
        for meta in _metas(lab, SESSIONS)
        if int(meta["name"][1:]) >= keep
    }
    for kind in (SESSIONS, SERVICES, PODS):
        metas = [
            meta for meta in _metas(lab, kind) if f"{meta['namespace']}/{_session_of(meta)}" in gone
        ]
        lab.many(lambda meta, kind=kind: _remove(lab.api, kind, meta), metas)  # type: ignore[misc]
    lab.settle()


def _session_of(meta: Raw) -> str:
    return str((meta.get("labels") or {}).get(names.LABEL_SESSION, meta["name"]))


def _metas(lab: Lab, kind: Kind) -> list[Raw]:
    return [raw["metadata"] for raw in lab.api.list(kind)[0]]


def _remove(api: Api, kind: Kind, meta: Raw) -> None:
    name, namespace = meta["name"], meta["namespace"]
    with contextlib.suppress(NotFoundError):
        if kind is SESSIONS and meta.get("finalizers"):
            api.patch(kind, {"metadata": {"finalizers": None}}, name=name, namespace=namespace)
        api.delete(kind, name=name, uid=meta["uid"], namespace=namespace)
