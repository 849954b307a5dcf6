"""The plugin's HTTP port: /metrics, /healthz, /readyz."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from sojourn_api import names


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        port: int,
        registry: CollectorRegistry,
        *,
        alive: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        super().__init__(("", port), _Handler)
        self.registry = registry
        self.alive = alive
        self.ready = ready


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case names.PATH_METRICS:
                content = generate_latest(self.server.registry)
                self._send(200, content, CONTENT_TYPE_PLAIN_0_0_4)
            case names.PATH_HEALTH:
                self._state(good=self.server.alive())
            case names.PATH_READY:
                self._state(good=self.server.ready())
            case _:
                self._send(404, b"not found\n")

    def _state(self, *, good: bool) -> None:
        self._send(200 if good else 503, b"ok\n" if good else b"not yet\n")

    def _send(self, status: int, content: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Scrapes are no news."""


def serve(
    port: int,
    registry: CollectorRegistry,
    *,
    alive: Callable[[], bool],
    ready: Callable[[], bool],
) -> ThreadingHTTPServer:
    """Serve in a thread; port 0 takes a free one."""
    server = _Server(port, registry, alive=alive, ready=ready)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
