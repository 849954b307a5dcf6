"""HTTP to the API server: raw objects in and out, over the `kubernetes` client's connection.

No typed models of the client (they would cost an idle operator some 20 MiB), no hidden retries (the
loop comes round again), no decisions. What went wrong is one of a few exceptions that name the
object.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlencode

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
OVERLOADED: Final = (0, 429, 502, 503, 504)
"""No answer at all, or one that speaks of the API server rather than of the request."""
REFUSED: Final = (400, 403, 422)
"""Answers to a create that stay the same however often one asks."""
CONNECTIONS: Final = 32
"""Kept open: more than threads write at once, or each write would begin with a handshake."""


class ApiError(Exception):
    """The API server refused a request, or did not answer; the loop tries again."""

    def __init__(self, what: str, *, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{what}: {message}")
        self.status = status
        self.message = message
        self.retry_after = retry_after
        """Seconds, as the API server wants it."""

    @property
    def overloaded(self) -> bool:
        """Whether nobody should ask for a while, whatever for."""
        return self.status in OVERLOADED


class NotFoundError(ApiError):
    """The object is gone."""


class ConflictError(ApiError):
    """Somebody else was quicker, or the object is another one than it was (its uid differs).

    Try again once it was seen anew: even a create may meet it, in a namespace with a quota.
    """


class ExistsError(ConflictError):
    """What should be created is there already."""


class TerminatingError(ApiError):
    """Nothing can be created any more in a namespace that is being deleted."""


class ConnectError(ConfigError):
    """There is neither a service account nor a kubeconfig that can be used, or nobody answers."""


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
        except Exception as error:
            # The client lets pass whatever a broken file brings out: OSError, YAMLError, KeyError.
            path = os.environ.get("KUBECONFIG") or "~/.kube/config"
            why = " ".join(str(error).split())
            hint = "run it in a pod with a service account, or set KUBECONFIG to a file that works"
            raise ConnectError(
                f"no cluster to connect to: kubeconfig {path}: {why}; {hint}"
            ) from error
    configuration.retries = False
    configuration.connection_pool_maxsize = CONNECTIONS
    client = ApiClient(configuration)
    client.user_agent = MANAGER_OPERATOR
    return client


def reached() -> "Api":
    """For a command that ends: the API server, if it answers."""
    client = connect()
    found = Api(client)
    try:
        found.version()
    except ApiError as error:
        if error.status not in (0, 401):
            return found  # whoever asked for something will say what was refused
        url, hint = client.configuration.host, "check KUBECONFIG, and that the cluster is up"
        raise ConnectError(f"the API server {url}: {error.message}; {hint}") from error
    return found


class Api:
    """The verbs that the operator uses. Writes go through the fence and are counted."""

    def __init__(self, client: ApiClient, *, fence: Fence | None = None) -> None:
        self._client = client
        self._fence = fence
        host = client.configuration.host
        # Past the client's own way, which costs the operator more than the request itself.
        self._pool = client.rest_client.pool_manager.connection_from_url(host)
        self._prefix = urllib3.util.parse_url(host).path or ""

    def version(self) -> Raw:
        """What the API server says of itself, to whoever asks."""
        return self._call("GET", None, "/version")

    def get(self, kind: Kind, *, name: str, namespace: str = "") -> Raw:
        return self._call("GET", kind, kind.path(namespace, name))

    def list(
        self, kind: Kind, *, label_selector: str = "", namespace: str = ""
    ) -> tuple[list[Raw], int]:
        """All objects of a kind, and the resource version of the list."""
        items, version = self.scan(kind, label_selector=label_selector, namespace=namespace)
        return list(items), version

    def scan(
        self,
        kind: Kind,
        *,
        label_selector: str = "",
        field_selector: str = "",
        namespace: str = "",
    ) -> tuple[Iterator[Raw], int]:
        """The same, with one page in memory at a time: thousands of raw objects are large."""
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        path = kind.path(namespace)
        first = self._page(kind, path, selectors, "")

        def items() -> Iterator[Raw]:
            page = first
            while True:
                token = page["metadata"].get("continue", "")
                held = page.get("items") or []
                held.reverse()
                while held:
                    yield held.pop()
                if not token:
                    return
                page = self._page(kind, path, selectors, token)

        return items(), int(first["metadata"]["resourceVersion"])

    def _page(self, kind: Kind, path: str, selectors: Mapping[str, str], token: str) -> Raw:
        query = {"limit": str(PAGE), "continue": token, **selectors}
        return self._call("GET", kind, path, query=query, seconds=LIST_SECONDS)

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
        # Without a word on unknown fields, for which the API server would read the body twice.
        query = {"fieldManager": MANAGER_OPERATOR, "force": "true", "fieldValidation": "Ignore"}
        content_type = "application/apply-patch+yaml"
        full = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        return self._write("PATCH", kind, path, full, query=query, content_type=content_type)

    def patch(self, kind: Kind, body: Raw, *, name: str, namespace: str = "") -> Raw:
        """A JSON merge patch."""
        path = kind.path(namespace, name)
        return self._write("PATCH", kind, path, body, content_type="application/merge-patch+json")

    def set_finalizers(
        self,
        kind: Kind,
        wanted: Sequence[str],
        *,
        held: Sequence[str],
        name: str,
        uid: str,
        namespace: str = "",
    ) -> Raw:
        """Of this object and no later one of its name; refused if they are not `held` any more.

        Not by server-side apply, which costs the API server a third more.
        """
        finalizers = "/metadata/finalizers"
        operations: list[Raw] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": finalizers, "value": list(held) or None},
            {"op": "add", "path": finalizers, "value": list(wanted)},
        ]
        path = kind.path(namespace, name)
        content_type = "application/json-patch+json"
        return self._write("PATCH", kind, path, operations, content_type=content_type)

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
        kind: Kind | None,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        seconds: float = TIMEOUT_SECONDS,
    ) -> Raw:
        what = f"{method} {kind.name} {path}" if kind else f"{method} {path}"
        headers = {
            **self._client.default_headers,
            "Accept": "application/json",
            "Content-Type": content_type,
        }
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        given = urlencode({key: value for key, value in (query or {}).items() if value})
        try:
            answer = self._pool.urlopen(
                method,
                f"{self._prefix}{path}?{given}" if given else f"{self._prefix}{path}",
                body=None if body is None else json.dumps(body, separators=(",", ":")),
                headers=headers,
                timeout=urllib3.Timeout(total=seconds),
                retries=False,
            )
            data = answer.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(what, status=0, message=f"no answer: {error}") from error
        if 200 <= answer.status <= 299:
            parsed: Raw = json.loads(data)
            return parsed
        wait = str(answer.headers.get("Retry-After", ""))
        raise _refusal(what, answer.status, data, retry_after=float(wait) if wait.isdigit() else 0)


def _refusal(what: str, status: int, data: bytes, *, retry_after: float) -> ApiError:
    try:
        answer = json.loads(data)
        message, reason = str(answer.get("message", "")), answer.get("reason", "")
        causes = (answer.get("details") or {}).get("causes") or []
    except ValueError:
        message, reason, causes = data[:200].decode(errors="replace"), "", []
    kind = {404: NotFoundError, 409: ConflictError}.get(status, ApiError)
    if (status, reason) == (409, "AlreadyExists"):
        kind = ExistsError
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        kind = TerminatingError
    message = message or f"HTTP status {status}"
    return kind(what, status=status, message=message, retry_after=retry_after)
