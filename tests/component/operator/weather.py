"""The way to the API server in bad weather: a proxy that refuses writes and lets watches go silent.

What it lets through is the real API server's. The operator under test is given its kubeconfig.
"""

import json
import ssl
import threading
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import yaml
from kubernetes import config as kubernetes_config
from localcluster.loopback import Api as ControlPlane

if TYPE_CHECKING:
    from collections.abc import Callable

LINE = 1 << 22


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the API server might give, instead of its own."""

    status: int
    reason: str
    retry_after: int = 0


class Weather:
    """Fair until a test says otherwise."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.refuse: Callable[[str, str], Refusal | None] = lambda _method, _path: None
        """Asked for each write but those of Leases; what it returns is answered instead."""
        self.silent = threading.Event()
        """While it is set, open watches say nothing, as over a connection that is half gone."""
        self.refused: list[tuple[str, str]] = []
        configuration = kubernetes_config.new_client_from_config(
            str(control_plane.kubeconfig)
        ).configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
        handler = type("Handler", (_Handler,), {"weather": self})
        target = urlsplit(configuration.host)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._target = (target.hostname or "", target.port)
        self._context = context
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "weather.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(self._kubeconfig()))

    def connect(self) -> HTTPSConnection:
        """To the API server itself."""
        host, port = self._target
        return HTTPSConnection(host, port, context=self._context)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _kubeconfig(self) -> dict[str, object]:
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "the proxy knows its own"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }


class _Handler(BaseHTTPRequestHandler):
    weather: Weather
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.onward = self.weather.connect()

    def finish(self) -> None:
        self.onward.close()
        super().finish()

    def do_GET(self) -> None:
        """Reads always pass."""
        self.onward.request("GET", self.path, headers=self._kept())
        answer = self.onward.getresponse()
        if "watch=true" in self.path:
            self._stream(answer)
        else:
            self._pass_on(answer)

    def _write(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        refusal = None if "/leases" in path else self.weather.refuse(self.command, path)
        if refusal is not None:
            self.weather.refused.append((self.command, path))
            self._refuse(refusal)
            return
        self.onward.request(self.command, self.path, body, self._kept())
        self._pass_on(self.onward.getresponse())

    def do_POST(self) -> None:
        self._write()

    def do_PUT(self) -> None:
        self._write()

    def do_PATCH(self) -> None:
        self._write()

    def do_DELETE(self) -> None:
        self._write()

    def _kept(self) -> dict[str, str]:
        names = ("Content-Type", "Accept", "User-Agent")
        return {name: self.headers[name] for name in names if name in self.headers}

    def _refuse(self, refusal: Refusal) -> None:
        status = {
            "kind": "Status",
            "code": refusal.status,
            "reason": refusal.reason,
            "message": f"{self.command} {self.path} is refused by the test",
        }
        self._answer(
            refusal.status,
            "application/json",
            json.dumps(status).encode(),
            retry_after=refusal.retry_after,
        )

    def _pass_on(self, answer: HTTPResponse) -> None:
        self._answer(answer.status, answer.getheader("Content-Type", ""), answer.read())

    def _answer(self, status: int, kind: str, data: bytes, *, retry_after: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answer: HTTPResponse) -> None:
        """Line by line until one of the two goes away; what silence swallows is lost."""
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", ""))
        self.end_headers()
        try:
            while line := answer.readline(LINE):
                if not self.weather.silent.is_set():
                    self.wfile.write(line)
        except (OSError, HTTPException):
            return

    def log_message(self, *_: object) -> None:
        """Quiet."""
