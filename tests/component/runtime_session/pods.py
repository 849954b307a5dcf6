"""The runtime as a process over a real model, started and stopped as a kubelet does it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60
"""Longest wait for anything: a guess for a busy machine of two cores."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Delta:
    """One event of a response's stream."""

    number: int
    type: str
    text: str


@dataclass
class Pod:
    """One start after another on one store."""

    model: Path
    folder: Path
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    seconds: float = SECONDS

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def last(self) -> Path:
        return self.folder / "termination-log"

    def start(self, *, wait: bool = True) -> None:
        self.last.unlink(missing_ok=True)
        paths = [str(self.folder), *(str(ROOT / part) for part in ("crds", "runtime"))]
        log = (self.folder / "log").open("ab")
        command = [
            *(sys.executable, "-m", "sojourn_runtime", "--model", str(self.model)),
            *("--model-name", "smol", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--store", self.store.as_uri(), "--session", "one", "--device", "cpu"),
            *("--threads", "1"),  # two would wait for each other on a busy machine
            *self.flags,
        ]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "SOJOURN_TERMINATION_MESSAGE": str(self.last),
        }
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        log.close()
        if wait:
            self.until(self._ready, "ready")

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition that another process makes true."""
        deadline = time.monotonic() + self.seconds
        while not condition():
            assert time.monotonic() < deadline, f"not {what} after {self.seconds} s"
            time.sleep(0.005)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Exit code and termination message."""
        assert self.process is not None
        code = self.process.wait(self.seconds)
        self.process = None
        return code, json.loads(self.last.read_text()) if self.last.exists() else {}

    def pause(self) -> dict[str, Any]:
        self.signal()
        code, words = self.ended()
        assert code == 0, (self.folder / "log").read_text()
        return words

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended()

    # -- HTTP --

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.seconds)

    def get(self, path: str) -> tuple[int, Any]:
        connection = self._connection()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
            kind = answer.headers.get_content_type()
            return answer.status, json.loads(content) if kind == "application/json" else content
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        connection = self._connection()
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps({"model": "smol"} | body), headers)
            answer = connection.getresponse()
            content: dict[str, Any] = json.loads(answer.read())
            assert answer.status == 200, content
            return content
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/sojourn/v1/status")[1]
        return found

    def read_and_pause(self, response: str, found: list[Delta], *, more: int) -> None:
        """Read on behind `found`, ask for a pause after so many, and read until the stream ends."""
        wanted = len(found) + more
        for event in self.deltas(response, after=found[-1].number if found else None):
            found.append(event)
            if len(found) == wanted:
                self.signal()

    def deltas(self, response: str, *, after: int | None = None) -> Iterator[Delta]:
        """The events of a response behind `after`, until the server closes the stream."""
        start = "" if after is None else f"&starting_after={after}"
        connection = self._connection()
        try:
            connection.request("GET", f"/v1/responses/{response}?stream=true{start}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    text = event.get("delta", "")
                    yield Delta(event["sequence_number"], event["type"], text)
        except (http.client.IncompleteRead, ConnectionError):
            return  # the pod went away: what came counts
        finally:
            connection.close()
