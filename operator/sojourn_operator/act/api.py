"""HTTP to the API server: raw objects in and out, over the `kubernetes` client's connection.

No typed models of the client (they would cost an idle operator some 20 MiB), no hidden retries (the
loop comes round again), no decisions. What went wrong is one of three exceptions that name the
object.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import urllib3
from kubernetes import config as kubernetes_config
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from sojourn_api.names import MANAGER_OPERATOR

from sojourn_operator import metrics
from sojourn_operator.config import ConfigError
from sojourn_operator.kinds import Kind

Raw = dict[str, Any]

TIMEOUT_SECONDS: Final = 4.0
"""Of one request. Shorter than what is left of a Lease when a side effect begins (see `leader`)."""
LIST_SECONDS: Final = 30.0
"""A page of large objects from a busy API server; a read needs no fence."""
PAGE: Final = 500
"""Objects per page of a list, as client-go asks for."""


class ApiError(Exception):
    """The API server refused a request, or did not answer; the loop tries again."""

    def __init__(self, what: str, *, status: int, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.status = status
        self.message = message


class NotFoundError(ApiError):
    """The object is gone."""


class ConflictError(ApiError):
    """The object exists already, or is another one than it was (its uid differs)."""


class ConnectError(ConfigError):
    """There is neither a service account nor a kubeconfig that can be used."""


class Fence(Protocol):
    """Raises before a write by a process that does not lead any more."""

    def check(self) -> None: ...


def connect() -> ApiClient:
    """A client from the pod's service account, else from the kubeconfig."""
    configuration = Configuration()
    try:
        kubernetes_config.load_incluster_config(configuration)
    except kubernetes_config.ConfigException:
        try:
            kubernetes_config.load_kube_config(client_configuration=configuration)
        except kubernetes_config.ConfigException as error:
            hint = "run it in a pod with a service account, or set KUBECONFIG"
            raise ConnectError(f"no cluster to connect to ({error}); {hint}") from error
    configuration.retries = False
    client = ApiClient(configuration)
    client.user_agent = MANAGER_OPERATOR
    return client


class Api:
    """The verbs that the operator uses. Writes go through the fence and are counted."""

    def __init__(self, client: ApiClient, *, fence: Fence | None = None) -> None:
        self._client = client
        self._fence = fence

    def get(self, kind: Kind, *, name: str, namespace: str = "") -> Raw:
        return self._call("GET", kind, kind.path(namespace, name))

    def list(self, kind: Kind, *, label_selector: str = "") -> tuple[list[Raw], int]:
        """All objects of a kind, and the resource version of the list."""
        items: list[Raw] = []
        token = ""
        while True:
            query = {"limit": str(PAGE), "continue": token, "labelSelector": label_selector}
            page = self._call("GET", kind, kind.path(), query=query, seconds=LIST_SECONDS)
            items += page.get("items") or []
            token = page["metadata"].get("continue", "")
            if not token:
                return items, int(page["metadata"]["resourceVersion"])

    def create(self, kind: Kind, body: Raw) -> Raw:
        return self._write("POST", kind, kind.path(body["metadata"].get("namespace", "")), body)

    def replace(self, kind: Kind, body: Raw) -> Raw:
        """Only if nobody wrote in between: `body` carries its resource version."""
        meta = body["metadata"]
        return self._write("PUT", kind, kind.path(meta.get("namespace", ""), meta["name"]), body)

    def apply(self, kind: Kind, body: Raw, *, subresource: str = "") -> Raw:
        """Server-side apply. Without `metadata.uid` it would create anew what was deleted."""
        meta = body["metadata"]
        path = kind.path(meta.get("namespace", ""), meta["name"], subresource)
        query = {"fieldManager": MANAGER_OPERATOR, "force": "true"}
        content_type = "application/apply-patch+yaml"
        full = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        return self._write("PATCH", kind, path, full, query=query, content_type=content_type)

    def patch(self, kind: Kind, body: Raw, *, name: str, namespace: str = "") -> Raw:
        """A JSON merge patch."""
        path = kind.path(namespace, name)
        return self._write("PATCH", kind, path, body, content_type="application/merge-patch+json")

    def json_patch(
        self, kind: Kind, operations: Sequence[Raw], *, name: str, namespace: str = ""
    ) -> Raw:
        """A JSON patch, which may test what it changes."""
        path = kind.path(namespace, name)
        content_type = "application/json-patch+json"
        return self._write("PATCH", kind, path, list(operations), content_type=content_type)

    def delete(
        self,
        kind: Kind,
        *,
        name: str,
        uid: str,
        namespace: str = "",
        grace_seconds: int | None = None,
    ) -> Raw:
        """This object and no later one of its name; None: with the grace that it asks for."""
        body: Raw = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        return self._write("DELETE", kind, kind.path(namespace, name), body)

    def _write(
        self,
        method: str,
        kind: Kind,
        path: str,
        body: object,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Raw:
        if self._fence is not None:
            self._fence.check()
        metrics.WRITES.labels(kind.plural, method.lower()).inc()
        return self._call(method, kind, path, query=query, body=body, content_type=content_type)

    def _call(
        self,
        method: str,
        kind: Kind,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        seconds: float = TIMEOUT_SECONDS,
    ) -> Raw:
        what = f"{method} {kind.name} {path}"
        headers = {"Accept": "application/json", "Content-Type": content_type}
        request = self._client.param_serialize(
            method,
            path,
            query_params=[(key, value) for key, value in (query or {}).items() if value],
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=seconds)
            data = answer.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(what, status=0, message=f"no answer: {error}") from error
        if 200 <= answer.status <= 299:
            parsed: Raw = json.loads(data)
            return parsed
        raise _refusal(what, answer.status, data)


def _refusal(what: str, status: int, data: bytes) -> ApiError:
    try:
        message = str(json.loads(data).get("message", ""))
    except ValueError:
        message = data[:200].decode(errors="replace")
    kind = {404: NotFoundError, 409: ConflictError}.get(status, ApiError)
    return kind(what, status=status, message=message or f"HTTP status {status}")
