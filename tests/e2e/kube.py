"""kubectl and helm as a user types them, with JSON where a program must read.

One object knows one cluster (a kubeconfig). Nothing of Sojourn's meaning is here: see `story`.
"""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CommandFailedError(RuntimeError):
    """A command ended with an error; its text is the command and what it printed."""


class NotInTimeError(RuntimeError):
    """What was waited for did not come; the text says what was seen last."""


@dataclass(frozen=True, slots=True)
class Kube:
    """A cluster: its kubeconfig and the two programs that speak to it."""

    kubeconfig: Path
    kubectl_path: str = "kubectl"
    helm_path: str = "helm"

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        """What `kubectl args` prints."""
        return self._run([self.kubectl_path, *args], stdin=stdin, check=check)

    def helm(self, *args: str) -> str:
        """What `helm args` prints."""
        return self._run([self.helm_path, *args])

    def apply(self, manifest: str) -> str:
        """Apply a manifest's text."""
        return self.kubectl("apply", "-f", "-", stdin=manifest)

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """One object; raises CommandFailedError where it is absent."""
        where = ["-n", namespace] if namespace else []
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, *where, "-o", "json"))
        return found

    def items(self, kind: str, *args: str) -> list[dict[str, Any]]:
        """All objects of a kind that `args` (as kubectl's) select."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *args, "-o", "json"))[
            "items"
        ]
        return found

    def wait(
        self,
        what: str,
        read: Callable[[], Any],
        until: Callable[[Any], bool],
        *,
        seconds: float = 120,
    ) -> Any:
        """Read until `until` holds of it; `what` names it in the error."""
        end = time.monotonic() + seconds
        last: object = None
        while time.monotonic() < end:
            try:
                last = read()
            except CommandFailedError as error:
                last = error
            else:
                if until(last):
                    return last
            time.sleep(0.25)
        raise NotInTimeError(f"{what}: not within {seconds:.0f} s; last seen: {last}")

    def wait_for(
        self,
        what: str,
        kind: str,
        name: str,
        until: Callable[[dict[str, Any]], bool],
        *,
        namespace: str | None = None,
        seconds: float = 120,
    ) -> dict[str, Any]:
        """Until `until` holds of one object, which need not be there yet.

        By a watch: a kubectl for each look would take a quarter of a core.
        """
        end = time.monotonic() + seconds
        seen = None
        while (left := end - time.monotonic()) > 0:
            with self._watching(kind, name, namespace=namespace, seconds=left) as objects:
                for seen in objects:
                    if until(seen):
                        return seen
            time.sleep(0.25)  # it is absent, or the API server is away
        raise NotInTimeError(f"{what}: not within {seconds:.0f} s; last seen: {seen}")

    @contextmanager
    def _watching(
        self, kind: str, name: str, *, namespace: str | None, seconds: float
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """One object as it is, and after each change; it ends where kubectl gives up."""
        where = ["-n", namespace] if namespace else []
        command = [self.kubectl_path, "get", kind, name, *where, "-o", "json", "--watch"]
        with subprocess.Popen(
            command, env=self._env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            over = threading.Timer(seconds, process.kill)
            over.start()
            try:
                yield _objects(process.stdout)
            finally:
                over.cancel()
                process.kill()

    @contextmanager
    def port_forward(self, service: str, *, namespace: str, port: int) -> Iterator[str]:
        """A base URL on loopback that reaches the service's present pod."""
        command = [
            self.kubectl_path,
            "-n",
            namespace,
            "port-forward",
            f"service/{service}",
            f":{port}",
        ]
        with subprocess.Popen(
            command, env=self._env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                if process.stdout is None:
                    raise CommandFailedError(f"{' '.join(command)}: no pipe to it")
                line = process.stdout.readline()
                if "Forwarding from" not in line:
                    raise CommandFailedError(f"{' '.join(command)}: {line}{process.stdout.read()}")
                address = line.split("Forwarding from ")[1].split(" ->")[0]
                _wait_open(address)
                yield f"http://{address}"
            finally:
                process.kill()

    def _run(self, command: list[str], *, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self._env(), input=stdin, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise CommandFailedError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout}")
        return done.stdout

    def _env(self) -> Mapping[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}


def _objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Of a stream of indented JSON: each ends with its own bracket at a line's begin."""
    whole = ""
    for line in lines:
        whole += line
        if line.rstrip() == "}":
            yield json.loads(whole)
            whole = ""


def _wait_open(address: str) -> None:
    host, port = address.rsplit(":", 1)
    end = time.monotonic() + 5
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
        else:
            return
