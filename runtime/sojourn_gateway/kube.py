"""A small client of the API server: list, watch and patch of one kind, with the service account.

No retries and no memory: what to do after an error is `watch`'s business.
"""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
from sojourn_api import names
from sojourn_api.access import Access

Raw = dict[str, Any]

SESSIONS: Final = f"/apis/{names.API_VERSION}/llmsessions"
PAGE: Final = 500
WATCH_SECONDS: Final = 300
"""After so long the server ends a watch, which is then taken up where it ended."""
SILENCE: Final = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=WATCH_SECONDS + 30)
"""A watch that says nothing beyond its own end is a dead connection."""
LINE_BYTES: Final = 2 * 1024 * 1024
"""Beyond what etcd takes as one object."""
GONE: Final = 410


class KubeError(Exception):
    """The API server is away or refuses; `status` is 0 when it did not answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def gone(self) -> bool:
        """What was asked for is too old to be known: list again."""
        return self.status == GONE


class Kube:
    """The sessions of all namespaces."""

    def __init__(self, access: Access, http: aiohttp.ClientSession) -> None:
        self._access = access
        self._http = http
        self._tls: ssl.SSLContext | bool = True
        if access.ca_file is not None:
            self._tls = ssl.create_default_context(cafile=str(access.ca_file))

    async def list(self) -> tuple[list[Raw], str]:
        """All sessions, and the resource version to watch from."""
        found: list[Raw] = []
        query = {"limit": str(PAGE)}
        while True:
            async with self._call("GET", SESSIONS, query=query) as answer:
                page = json.loads(await answer.read())
            found += page["items"]
            meta = page["metadata"]
            if not meta.get("continue"):
                return found, meta["resourceVersion"]
            query["continue"] = meta["continue"]

    async def watch(self, version: str) -> AsyncIterator[tuple[str, Raw]]:
        """(type, object) from there on, until the server ends the watch; bookmarks among them."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._call("GET", SESSIONS, query=query, timeout=SILENCE) as answer:
            while line := await answer.content.readuntil(max_size=LINE_BYTES):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise KubeError(
                        f"watch: {status.get('message')}", status=int(status.get("code", 0))
                    )
                yield event["type"], event["object"]

    async def annotate(self, key: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of one session, and nothing else of it."""
        namespace, _, name = key.partition("/")
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/llmsessions/{name}"
        query = {"fieldManager": names.MANAGER_GATEWAY}
        body = {"metadata": {"annotations": dict(annotations)}}
        async with self._call("PATCH", path, query=query, body=body):
            pass

    @asynccontextmanager
    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: Raw | None = None,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 - of the socket
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An open answer that is no error; whatever goes wrong in the block is a KubeError."""
        try:
            headers = {"Accept": "application/json", "User-Agent": names.MANAGER_GATEWAY}
            if body is not None:
                headers["Content-Type"] = "application/merge-patch+json"
            async with self._http.request(
                method,
                self._access.url + path,
                params=query,
                headers=headers | self._access.headers,
                data=None if body is None else json.dumps(body),
                ssl=self._tls,
                timeout=timeout or aiohttp.ClientTimeout(total=30),
            ) as answer:
                if not answer.ok:
                    raise KubeError(await _refusal(method, path, answer), status=answer.status)
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
            raise KubeError(f"{method} {path}: {error or type(error).__name__}") from error


async def _refusal(method: str, path: str, answer: aiohttp.ClientResponse) -> str:
    text = (await answer.content.read(4096)).decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):  # a proxy's page is shown as it is
        text = str(json.loads(text)["message"])
    return f"{method} {path}: {answer.status} {text}"
