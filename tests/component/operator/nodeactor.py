"""The node side for tests of the operator: scheduler, kubelet and runtime of a few pretended nodes.

Over the real API it does what those three do: binds pods that fit, runs them, answers the poll of
their status, ends them on deletion with a termination message. It knows nothing of the operator.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kubernetes.client import ApiException, CoreV1Api, CustomObjectsApi
from kubernetes.client.api_client import ApiClient
from sojourn_api import names

Raw = dict[str, Any]
TICK = 0.05
STARTED = "2026-01-01T00:00:00Z"


@dataclass
class Behaviour:
    """How the runtimes of one session act; a test changes it while they run."""

    end: Raw | None = field(default_factory=dict)
    """What the termination message says, over a clean pause; None: it leaves no message."""
    exit_code: int = 0
    ready: bool = True
    silent: bool = False
    """Its status page does not answer."""
    hold_end: bool = False
    """The pod takes long to save."""
    crash: bool = False
    """It ends right after its start."""
    waiting: str = ""
    """Why the kubelet does not start the container, as "ErrImagePull: not found"."""
    unschedulable: str = ""
    """Why the scheduler takes no node for it."""
    refuse: str = ""
    """The kubelet does not admit it, for this reason."""
    status: Raw = field(default_factory=dict)
    tokens: int = 100


class NodeActor:
    """Plays the nodes until `stop`."""

    def __init__(self, client: ApiClient) -> None:
        self._core = CoreV1Api(client)
        self._custom = CustomObjectsApi(client)
        self._nodes: dict[str, dict[int, int]] = {}
        self._servers: dict[str, _RuntimeServer] = {}
        self._addresses = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.frozen: set[str] = set()
        """Nodes that are silent: nothing happens there."""
        self.behaviour: dict[str, Behaviour] = {}
        self.errors: list[str] = []
        self.purge_phase = "Succeeded"
        self.purged: list[str] = []
        """Folders that pods were told to remove."""

    def of(self, session: str) -> Behaviour:
        return self.behaviour.setdefault(session, Behaviour())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for server in self._servers.values():
            server.close()

    def add_node(self, name: str, *, gpus: int = 1, slices: int = 80) -> None:
        """A ready node, as its kubelet and its device plugin would report it."""
        self._nodes[name] = dict.fromkeys(range(gpus), slices)
        resources = {names.gpu_resource(n): str(slices) for n in range(gpus)}
        room = {"cpu": "32", "memory": "256Gi", "pods": "110", **resources}
        self._core.create_node({"metadata": {"name": name}})
        self.set_ready(name, ready=True, room=room)
        # The node controller's part: admission taints a new node until it is ready.
        self._core.patch_node(name, {"spec": {"taints": None}})
        group = (names.GROUP, names.VERSION, "gpunodes")
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GPUNode",
            "metadata": {"name": name},
        }
        self._custom.create_cluster_custom_object(*group, body)
        status = {
            "driverVersion": "615.1",
            "gpus": [_gpu(name, n, slices) for n in range(gpus)],
        }
        self._custom.patch_cluster_custom_object_status(*group, name, {"status": status})

    def set_ready(self, name: str, *, ready: bool, room: Raw | None = None) -> None:
        condition = {
            "type": "Ready",
            "status": "True" if ready else "Unknown",
            "reason": "KubeletReady" if ready else "NodeStatusUnknown",
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        status: Raw = {"conditions": [condition]}
        if room is not None:
            status |= {"capacity": room, "allocatable": room}
        self._core.patch_node_status(name, {"status": status})

    def accuse(self, name: str, pod: Raw, *, reason: str, message: str) -> None:
        """The device plugin of a node holds something against a pod, which shall be stopped."""
        offender = {
            "namespace": pod["metadata"]["namespace"],
            "pod": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
            "reason": reason,
            "message": message,
            "stop": True,
        }
        group = (names.GROUP, names.VERSION, "gpunodes")
        status = {"status": {"offenders": [offender]}}
        self._custom.patch_cluster_custom_object_status(*group, name, status)

    def starve(self, name: str) -> None:
        """Others took the node's slices, and its GPUNode does not know."""
        self._nodes[name] = dict.fromkeys(self._nodes[name], 0)

    def _run(self) -> None:
        while not self._stopping.wait(TICK):
            try:
                pods = self._core.list_pod_for_all_namespaces(label_selector=names.LABEL_SESSION)
                raw = [self._core.api_client.sanitize_for_serialization(p) for p in pods.items]
                for pod in raw:
                    self._serve(pod, raw)
            except ApiException as error:
                # Objects change under an actor's hands, as under a kubelet's: it looks again.
                if error.status not in (404, 409):
                    self.errors.append(str(error))

    def _serve(self, pod: Raw, everyone: list[Raw]) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        phase = status.get("phase", "Pending")
        node = spec.get("nodeName")
        if not node:
            if "deletionTimestamp" not in meta:
                self._schedule(pod, everyone)
            return
        if node in self.frozen or node not in self._nodes:
            return
        behaviour = self.of(meta["labels"][names.LABEL_SESSION])
        if phase in ("Succeeded", "Failed"):
            self._bury(pod)
        elif names.ANNOTATION_GPUS not in meta.get("annotations", {}):
            # The pod that empties a deleted session's folder: a program that runs and ends.
            self._patch(pod, {"phase": self.purge_phase})
            self.purged.append(spec["containers"][0]["command"][-1])
        elif phase == "Pending":
            self._admit(pod, behaviour)
        elif behaviour.crash or ("deletionTimestamp" in meta and not behaviour.hold_end):
            self._end(pod, behaviour)
        else:
            self._probe(pod, behaviour)

    def _schedule(self, pod: Raw, everyone: list[Raw]) -> None:
        node = self._wanted(pod)
        kept = self.of(pod["metadata"]["labels"][names.LABEL_SESSION]).unschedulable
        if not kept and self._fits(pod, node, everyone):
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            body = {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
            namespace = pod["metadata"]["namespace"]
            self._core.create_namespaced_pod_binding(
                pod["metadata"]["name"], namespace, body, _preload_content=False
            )
            pod["spec"]["nodeName"] = node
            return
        message = kept or "0/1 nodes are available: 1 Insufficient sojourn.dev/gpu-0"
        known = pod.get("status", {}).get("conditions") or []
        if not any(entry["type"] == "PodScheduled" for entry in known):
            self._patch(pod, {"conditions": [_condition("PodScheduled", "False", message)]})

    def _wanted(self, pod: Raw) -> str:
        affinity = pod["spec"].get("affinity")
        if affinity is None:
            return next(iter(self._nodes))
        rule = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return str(rule["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])

    def _fits(self, pod: Raw, node: str, everyone: list[Raw]) -> bool:
        free = dict(self._nodes.get(node, {}))
        for other in everyone:
            bound = other["spec"].get("nodeName") == node
            if bound and other["status"].get("phase") not in ("Succeeded", "Failed"):
                for ordinal, slices in _asked(other).items():
                    free[ordinal] = free.get(ordinal, 0) - slices
        return all(free.get(ordinal, 0) >= slices for ordinal, slices in _asked(pod).items())

    def _admit(self, pod: Raw, behaviour: Behaviour) -> None:
        if behaviour.refuse:
            self._patch(pod, {"phase": "Failed", "reason": behaviour.refuse, "message": "no room"})
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._patch(pod, {"phase": "Failed"})
            return
        if behaviour.waiting:
            reason, _, message = behaviour.waiting.partition(": ")
            waiting = {"waiting": {"reason": reason, "message": message}}
            self._patch(pod, {"containerStatuses": [_container(waiting)]})
            return
        uid = pod["metadata"]["uid"]
        self._addresses += 1
        address = f"127.1.{self._addresses // 250}.{self._addresses % 250 + 1}"
        self._servers[uid] = _RuntimeServer(
            address, lambda: None if behaviour.silent else _status(pod, behaviour)
        )
        container = {"running": {"startedAt": STARTED}}
        self._patch(
            pod,
            {
                "phase": "Running",
                "podIP": address,
                "conditions": [_condition("PodScheduled", "True")],
                "containerStatuses": [_container(container)],
            },
        )

    def _probe(self, pod: Raw, behaviour: Behaviour) -> None:
        wanted = "True" if behaviour.ready else "False"
        known = pod["status"].get("conditions") or []
        if not any(c["type"] == "Ready" and c["status"] == wanted for c in known):
            self._patch(pod, {"conditions": [_condition("Ready", wanted, "probe")]})

    def _end(self, pod: Raw, behaviour: Behaviour) -> None:
        server = self._servers.pop(pod["metadata"]["uid"], None)
        if server is not None:
            server.close()
        code = behaviour.exit_code or int(behaviour.crash and behaviour.end is None)
        ended: Raw = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
        if behaviour.end is not None:
            ended["message"] = json.dumps(_report(pod, behaviour) | behaviour.end)
        self._patch(
            pod,
            {
                "phase": "Succeeded" if code == 0 else "Failed",
                "conditions": [_condition("Ready", "False", "ended")],
                "containerStatuses": [_container({"terminated": ended})],
            },
        )

    def _bury(self, pod: Raw) -> None:
        """A kubelet removes a deleted pod for good once all of it has ended."""
        meta = pod["metadata"]
        if meta.get("deletionGracePeriodSeconds"):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            self._core.delete_namespaced_pod(meta["name"], meta["namespace"], body=options)

    def _patch(self, pod: Raw, status: Raw) -> None:
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        self._core.patch_namespaced_pod_status(meta["name"], meta["namespace"], body)


class _RuntimeServer:
    """A runtime as the operator's poll sees it."""

    def __init__(self, address: str, status: Callable[[], Raw | None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                said = status()
                if said is None:
                    self.close_connection = True
                    return
                body = json.dumps(said).encode()
                self.send_response(200 if self.path == names.PATH_STATUS else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer((address, names.PORT), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _gpu(node: str, ordinal: int, slices: int) -> Raw:
    return {
        "ordinal": ordinal,
        "uuid": f"GPU-{node}-{ordinal}",
        "model": "A100-80GB",
        "memoryBytes": slices << 30,
        "sliceBytes": 1 << 30,
        "slices": slices,
        "freeSlices": slices,
        "healthy": True,
        "share": 1000,
    }


def _asked(pod: Raw) -> dict[int, int]:
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return {
        int(name.removeprefix(names.RESOURCE_PREFIX)): int(amount)
        for name, amount in limits.items()
        if name.startswith(names.RESOURCE_PREFIX)
    }


def _condition(kind: str, status: str, message: str = "") -> Raw:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    reason = {"PodScheduled": "Unschedulable"} if status == "False" else {}
    return {
        "type": kind,
        "status": status,
        "reason": reason.get(kind, kind),
        "message": message,
        "lastTransitionTime": now,
    }


def _container(state: Raw) -> Raw:
    running = "running" in state
    return {
        "name": names.CONTAINER,
        "image": "runtime",
        "imageID": "",
        "ready": running,
        "restartCount": 0,
        "state": state,
    }


def _report(pod: Raw, behaviour: Behaviour) -> Raw:
    labels = pod["metadata"]["labels"]
    epoch = int(labels[names.LABEL_EPOCH])
    name = labels[names.LABEL_SESSION]
    snapshot = {
        "uri": f"file:///var/lib/sojourn/store/{name}",
        "manifest": f"manifest-{epoch}-1.json",
        "tokens": behaviour.tokens,
        "bytes": behaviour.tokens * 1000,
        "newBytes": 1000,
        "conversations": 1,
        "digest": "sha256:" + "a" * 64,
        "weightsDigest": "sha256:" + "b" * 64,
        "kernelClass": "cpu-fma-bf16-v1",
        "epoch": epoch,
        "saved": STARTED,
    }
    return {
        "v": 1,
        "reason": "Paused",
        "message": "saved",
        "snapshot": snapshot,
        "requests": 0,
        "stopMs": 1.5,
        "saveMs": 2.5,
        "exact": True,
    }


def _status(pod: Raw, behaviour: Behaviour) -> Raw:
    labels = pod["metadata"]["labels"]
    return {
        "v": 1,
        "phase": "Serving",
        "session": labels[names.LABEL_SESSION],
        "epoch": int(labels[names.LABEL_EPOCH]),
        "exact": True,
        "exactReason": "",
        "requestsRunning": 0,
        "requestsWaiting": 0,
        "idleSeconds": 0.5,
        "unsavedBytes": 4096,
        "lastSnapshot": None,
        "latency": {"ttftP95Ms": None, "itlP95Ms": None, "window": 0},
    } | behaviour.status
