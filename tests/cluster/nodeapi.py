"""As much of an API server as the device plugin calls, over real HTTP: it keeps what is written."""

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sojourn_api import names

NODE = "/apis/sojourn.dev/v1alpha1/gpunodes/node"


class Server(ThreadingHTTPServer):
    """Keeps what is applied; `forbidden` paths answer 403, `busy` ones 429, `missing` ones 404."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.applied: dict[str, list[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self.queries: list[str] = []
        self.forbidden: set[str] = set()
        self.busy: set[str] = set()
        self.missing: set[str] = set()
        self.tried: list[str] = []
        """Paths of all writes, refused ones too."""
        self.said: dict[str, Any] = {}
        """The GPUNode's status, by whomever it was written last."""
        self.node_uid = "uid-node"
        """Of the Kubernetes node; empty: there is none."""
        self.answering = threading.Event()
        """While it is not set, calls are taken and not answered."""
        self.answering.set()
        self.unanswered = 0
        self.connections: list[socket.socket] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted = super().get_request()
        self.connections.append(accepted[0])
        return accepted

    def crash(self) -> None:
        self.answering.set()
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def status(self) -> dict[str, Any]:
        writes = self.applied.get(f"{NODE}/status")
        found: dict[str, Any] = writes[-1]["status"] if writes else {}
        return found

    def node(self) -> dict[str, Any]:
        """The GPUNode, as far as reading it needs."""
        return {"metadata": {"name": "node", "uid": "u"}, "status": self.status()}


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.queries.append(self.path)
        if self.path == "/api/v1/nodes/node":
            found = {"metadata": {"name": "node", "uid": self.server.node_uid}}
            self.answer(200 if self.server.node_uid else 404, found)
            return
        self.answer(200, {"kind": "PartialObjectMetadataList", "items": self.server.pods})

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/apply-patch+yaml"
        path, _, query = self.path.partition("?")
        assert "fieldManager=sojourn-deviceplugin" in query
        body = self.body()
        self.server.tried.append(path)
        if any(part in path for part in self.server.forbidden):
            self.answer(403, {"message": f"{path} is forbidden"})
            return
        if path in self.server.missing:
            self.answer(404, {"message": f"{path} not found"})
            return
        if any(part in path for part in self.server.busy):
            self.answer(429, {"message": f"{path} has to wait"})
            return
        self.server.applied.setdefault(path, []).append(body)
        if path.endswith("/status"):
            self.server.said = body["status"]
        self.answer(200, body | {"status": self.server.said})

    def do_POST(self) -> None:
        body = self.body()
        if "events" in self.server.forbidden | self.server.busy:
            forbidden = "events" in self.server.forbidden
            self.answer(403 if forbidden else 429, {"message": "no events"})
            return
        self.server.events.append(body)
        self.answer(201, body)

    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return decoded

    def answer(self, status: int, body: dict[str, Any]) -> None:
        if not self.server.answering.is_set():
            self.server.unanswered += 1
            self.server.answering.wait()
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def session_pod(
    name: str, *, priority: int, slices: int, uid: str = "", owner: str = "LLMSession"
) -> dict[str, Any]:
    """The metadata of a pod as the operator makes it, with a grant on GPU 0."""
    gpus = [{"ordinal": 0, "uuid": "", "slices": slices, "share": 700}]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "ownerReferences": [
                {"apiVersion": "sojourn.dev/v1alpha1", "kind": owner, "controller": True}
            ],
            "annotations": {
                names.ANNOTATION_TIER: "gold",
                names.ANNOTATION_PRIORITY: str(priority),
                names.ANNOTATION_GPUS: json.dumps(gpus),
            },
        }
    }
