"""A small client of the API server: JSON over one kept connection, with the pod's service account.

For one thread. No retries and no caching: the caller comes again with what is true then.
"""

import http
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from sojourn_api.access import Access

SECONDS: Final = 5

APPLY: Final = "application/apply-patch+yaml"
"""JSON is YAML."""
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Spares the specs of pods that we do not read."""
ONE_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class ApiError(Exception):
    """The API server is away or refuses; `status` is 0 when it did not answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refused(self) -> bool:
        """Whether the same call would be answered alike: it is not that the API server is busy."""
        busy = (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS)
        return 400 <= self.status < 500 and self.status not in busy


class Kube:
    """One connection, made when needed and dropped after a failure."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connection: http.client.HTTPConnection | None = None

    def apply(self, path: str, body: Mapping[str, Any], *, manager: str) -> dict[str, Any]:
        """Server-side apply: creates or changes our fields, whoever had them before.

        The object as it is then.
        """
        return self.call(
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
            connection = self._connect()
            connection.request(method, path, body=content, headers=headers | self._access.headers)
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
