"""/healthz, /readyz and /metrics over HTTP, for the kubelet and Prometheus. No state of its own."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from sojourn_api import names

PLAIN: Final = "text/plain; charset=utf-8"


class Probes:
    """`healthy` and `ready` say why not, or nothing."""

    def __init__(
        self, *, host: str, port: int, healthy: Callable[[], str], ready: Callable[[], str]
    ) -> None:
        routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            names.PATH_HEALTH: lambda: _verdict(healthy()),
            names.PATH_READY: lambda: _verdict(ready()),
            names.PATH_METRICS: lambda: (200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY)),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                route = routes.get(self.path)
                code, kind, body = route() if route else (404, PLAIN, b"not found\n")
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Probes every few seconds are no news."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="probes", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _verdict(why_not: str) -> tuple[int, str, bytes]:
    return (503 if why_not else 200), PLAIN, f"{why_not or 'ok'}\n".encode()
