"""An S3-compatible server on loopback, and the environment that leads to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from localbucket import S3Handler


class Forgetful(S3Handler):  # type: ignore[misc]  # untyped
    """Ignores conditions, as older servers do."""

    def do_PUT(self) -> None:  # noqa: N802 - the name is the base's
        del self.headers["If-None-Match"]
        super().do_PUT()


@contextmanager
def serving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, handler: type[S3Handler] = S3Handler
) -> Iterator[None]:
    """The bucket `contexts` under `folder`, while the context lasts."""
    (folder / "contexts").mkdir(parents=True)
    rooted = type("Rooted", (handler,), {"data_root": folder, "log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), rooted)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
