"""A small client of the API server: JSON over one kept connection, with the pod's service account.

For one thread. No retries and no caching: the caller comes again with what is true then.
"""

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

SECONDS: Final = 5
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

APPLY: Final = "application/apply-patch+yaml"
"""JSON is YAML."""
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Spares the specs of pods that we do not read."""


class ApiError(Exception):
    """The API server is away or refuses; `status` is 0 when it did not answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and who we are; the token is read at every call, since it rotates."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


def in_cluster() -> Access:
    """What every pod is given."""
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    except KeyError as error:
        raise ApiError("not in a pod: KUBERNETES_SERVICE_HOST is not set") from error
    host = f"[{host}]" if ":" in host else host
    return Access(
        url=f"https://{host}:{port}", token_file=ACCOUNT / "token", ca_file=ACCOUNT / "ca.crt"
    )


class Kube:
    """One connection, made when needed and dropped after a failure."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connection: http.client.HTTPConnection | None = None

    def apply(self, path: str, body: Mapping[str, Any], *, manager: str) -> None:
        """Server-side apply: creates or changes our fields, whoever had them before."""
        self.call(
            "PATCH", f"{path}?fieldManager={manager}&force=true", body=body, content_type=APPLY
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        """The decoded answer of a successful call."""
        headers = {"Accept": accept, "User-Agent": "sojourn-deviceplugin"}
        content = None
        if body is not None:
            content = json.dumps(body)
            headers["Content-Type"] = content_type
        try:
            if self._access.token_file is not None:
                token = self._access.token_file.read_text().strip()
                headers["Authorization"] = f"Bearer {token}"
            connection = self._connect()
            connection.request(method, path, body=content, headers=headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ApiError(f"{method} {path}: {error or type(error).__name__}") from error
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(
                f"{method} {path}: {response.status} {_reason(text)}", status=response.status
            )
        decoded: dict[str, Any] = json.loads(text) if text else {}
        return decoded

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            parts = urlsplit(self._access.url)
            host, port = parts.hostname or "", parts.port
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=self._access.ca_file)
                self._connection = http.client.HTTPSConnection(
                    host, port, timeout=SECONDS, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
        return self._connection

    def close(self) -> None:
        """Drop the connection; the next call makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reason(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode(errors="replace")
