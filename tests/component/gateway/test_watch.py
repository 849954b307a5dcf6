"""The directory is what the API server has: over broken watches, old versions and refusals.

The API server of most tests here is played over real HTTP; one test asks a real one, with the
rights that the chart grants.
"""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from helmchart import ROOT, render
from localcluster.loopback import Api as ControlPlane
from sojourn_api import names
from sojourn_api.access import Access
from sojourn_gateway.directory import Directory
from sojourn_gateway.kube import Kube, KubeError
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.watch import Watch

Raw = dict[str, Any]


def raw(name: str, *, version: int = 1, ready: bool = True, **meta: Any) -> Raw:
    condition = {"type": "Ready", "status": str(ready), "reason": "Serving", "message": "m"}
    return {
        "metadata": {"name": name, "namespace": "chats", "resourceVersion": str(version)} | meta,
        "spec": {"model": "smol", "tier": "silver"},
        "status": {"endpoint": "http://h:8000/v1", "conditions": [condition]},
    }


def event(kind: str, name: str, *, version: int, **fields: Any) -> Raw:
    return {"type": kind, "object": raw(name, version=version, **fields)}


@dataclass
class Followed:
    """A watch that runs, and what it has found out."""

    directory: Directory
    metrics: Metrics
    watch: Watch

    async def until(self, expected: dict[str, bool]) -> None:
        """Sessions by name, and whether they are ready."""
        async with asyncio.timeout(60):
            while self.found() != expected:  # noqa: ASYNC110 - a directory tells of one session
                await asyncio.sleep(0.005)

    def woken(self) -> float:
        return self.metrics.registry.get_sample_value("sojourn_gateway_wakes_total") or 0.0

    def found(self) -> dict[str, bool]:
        sessions = self.directory.sessions
        return {key.partition("/")[2]: session.ready for key, session in sessions.items()}


@asynccontextmanager
async def following(access: Access) -> AsyncIterator[Followed]:
    directory, metrics = Directory(), Metrics()
    async with aiohttp.ClientSession() as http:
        watch = Watch(Kube(access, http), directory, metrics)
        task = asyncio.create_task(watch.run())
        yield Followed(directory, metrics, watch)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@dataclass
class PlayedApi:
    """Lists and watches as a test says; what was asked for is kept."""

    lists: list[Any] = field(default_factory=list)
    """Answers, one after another: pages, or an HTTP status."""
    watches: list[Any] = field(default_factory=list)
    """Answers, one after another: events after which the watch ends, or an HTTP status.

    After the last one a watch stays open.
    """
    asked: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        script = self.watches if "watch" in request.query else self.lists
        given = script.pop(0) if script else []
        if isinstance(given, int):
            return web.json_response({"message": "as the test says"}, status=given)
        if "watch" not in request.query:
            return web.json_response(given)
        response = web.StreamResponse()
        await response.prepare(request)
        for one in given:
            await response.write(json.dumps(one).encode() + b"\n")
        if not given:
            await asyncio.Event().wait()
        return response


@pytest.fixture
async def api() -> AsyncIterator[PlayedApi]:
    played = PlayedApi()
    app = web.Application()
    app.router.add_get(f"/apis/{names.API_VERSION}/llmsessions", played.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    played.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield played
    await runner.cleanup()


def page(*items: Raw, version: int = 10, more: str = "") -> Raw:
    return {"items": list(items), "metadata": {"resourceVersion": str(version), "continue": more}}


def versions(api: PlayedApi) -> list[str]:
    """Where each watch began."""
    return [asked["resourceVersion"] for asked in api.asked if "watch" in asked]


async def test_sessions_come_change_and_go(api: PlayedApi) -> None:
    api.lists = [page(raw("one"), raw("two"))]
    api.watches = [
        [
            event("ADDED", "three", version=11),
            event("MODIFIED", "one", version=12, ready=False),
            event("DELETED", "two", version=13),
        ]
    ]
    async with following(Access(api.url)) as found:
        await found.until({"one": False, "three": True})
        assert found.directory.filled


async def test_a_watch_that_breaks_is_taken_up_where_it_was(api: PlayedApi) -> None:
    api.lists = [page(raw("one"))]
    api.watches = [
        [event("MODIFIED", "one", version=15, ready=False)],
        500,
        [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "30"}}}],
        [event("MODIFIED", "one", version=31)],
    ]
    async with following(Access(api.url)) as found:
        await found.until({"one": False})
        await found.until({"one": True})
    assert versions(api)[:4] == ["10", "15", "15", "30"]
    assert len([asked for asked in api.asked if "watch" not in asked]) == 1


@pytest.mark.parametrize(
    "gone",
    [410, [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}]],
)
async def test_a_version_that_is_too_old_lists_again_and_ghosts_go(
    api: PlayedApi, gone: Any
) -> None:
    api.lists = [page(raw("ghost"), raw("one")), page(raw("one"), raw("new"), version=40)]
    api.watches = [gone]
    async with following(Access(api.url)) as found:
        await found.until({"ghost": True, "one": True})
        await found.until({"one": True, "new": True})
        async with asyncio.timeout(60):
            while versions(api) != ["10", "40"]:  # noqa: ASYNC110 - the played server has no events
                await asyncio.sleep(0.005)


async def test_long_lists_come_in_pages(api: PlayedApi) -> None:
    api.lists = [page(raw("one"), more="next"), page(raw("two"), version=11)]
    async with following(Access(api.url)) as found:
        await found.until({"one": True, "two": True})
    assert api.asked[1]["continue"] == "next"
    assert versions(api) in ([], ["11"])


async def test_rights_may_come_later_than_the_gateway(api: PlayedApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    api.lists = [403, page(raw("one"))]
    async with following(Access(api.url, token_file=token)) as found:
        async with asyncio.timeout(60):
            while not api.asked:  # noqa: ASYNC110 - the played server has no events
                await asyncio.sleep(0.005)
        assert not found.directory.filled
        token.write_text("second\n")  # the kubelet renews it
        await found.until({"one": True})
        assert found.metrics.registry.get_sample_value("sojourn_gateway_source_errors_total") == 1
    assert api.tokens[:2] == ["Bearer first", "Bearer second"]


# -- a real API server --

SESSION = """
apiVersion: sojourn.dev/v1alpha1
kind: LLMSession
metadata: {name: sleeper, namespace: front}
spec: {model: smol, tier: silver, idle: {action: Pause, afterSeconds: 60}}
"""
PAUSED_AT = "2026-01-01T10:00:00Z"


@pytest.fixture
def access(control_plane: ControlPlane, tmp_path: Path) -> Access:
    """Our kinds, a namespace, and the gateway's service account with the chart's rights."""
    kubectl = control_plane.kubectl
    kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    for namespace in ("front", "sojourn-system"):
        meta = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        kubectl("apply", "-f", "-", stdin=json.dumps(meta))
    rendered = render("gateway.enabled=true")
    wanted = [
        found
        for (kind, name), found in rendered.items()
        if name.startswith("sojourn-gateway") and not kind.startswith(("Dep", "Serv", "Net"))
    ]
    account = rendered["ServiceAccount", "sojourn-gateway"]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([account, *wanted]))
    (tmp_path / "token").write_text(
        kubectl("create", "token", "sojourn-gateway", "-n", "sojourn-system")
    )
    cluster = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = tmp_path / "ca.crt"
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    return Access(control_plane.url, tmp_path / "token", authority)


def status(*, ready: bool, reason: str) -> str:
    """As the operator would write it, told to kubectl."""
    conditions = [
        {"type": "Ready", "status": str(ready), "reason": reason, "message": "m"},
        {"type": "Paused", "status": str(not ready), "reason": reason, "message": "m"},
    ]
    for one in conditions:
        one |= {"lastTransitionTime": PAUSED_AT}
    found = {"conditions": conditions, "endpoint": "http://sleeper.front.svc:8000/v1"}
    return json.dumps({"status": found | {"pausedAt": PAUSED_AT}})


@pytest.mark.cluster
@pytest.mark.timeout(400)
async def test_with_the_charts_rights_it_learns_of_sessions_and_wakes_them_and_no_more(
    control_plane: ControlPlane, access: Access
) -> None:
    async def kubectl(*arguments: str, stdin: str = "") -> str:
        return await asyncio.to_thread(control_plane.kubectl, *arguments, stdin=stdin)

    async def tell(text: str) -> None:
        patch = ("patch", "llms", "sleeper", "-n=front", "--subresource=status", "--type=merge")
        await kubectl(*patch, "-p", text)

    async with following(access) as found:
        await kubectl("apply", "-f", "-", stdin=SESSION)
        await found.until({"sleeper": False})
        await tell(status(ready=True, reason="Serving"))
        await found.until({"sleeper": True})
        await tell(status(ready=False, reason=names.REASON_IDLE))
        await found.until({"sleeper": False})
        async with asyncio.timeout(60):
            while not (asleep := found.directory.sessions["front/sleeper"]).asleep_since:
                await found.directory.news("front/sleeper", seconds=10)
        found.watch.wake(asleep)
        found.watch.wake(asleep)
        async with asyncio.timeout(60):
            while found.directory.sessions["front/sleeper"].asleep_since:
                await found.directory.news("front/sleeper", seconds=10)
        async with asyncio.timeout(60):  # the watch may tell of it before the patch is answered
            while found.woken() != 1:  # noqa: ASYNC110 - a counter has no events
                await asyncio.sleep(0.005)
        woken = json.loads(await kubectl("get", "llms", "sleeper", "-n=front", "-o=json"))
        assert woken["metadata"]["annotations"][names.ANNOTATION_WAKE] > PAUSED_AT
        await refused(access)
        await refused(access, {"metadata": {"annotations": {"mine": "1"}}})
        await refused(access, {"spec": {"suspend": True}})
        assert found.woken() == 1
        await kubectl("delete", "llms", "sleeper", "-n=front")
        await found.until({})


async def refused(access: Access, body: Raw | None = None) -> None:
    """The policy says no to that, or to a label, as soon as the API server knows it."""
    path = f"/apis/{names.API_VERSION}/namespaces/front/llmsessions/sleeper"
    said: list[str] = []
    async with aiohttp.ClientSession() as http:
        for tried in range(300):
            # What changes nothing is allowed: an earlier try may have got through.
            new = body or {"metadata": {"labels": {"tried": str(tried)}}}
            try:
                async with Kube(access, http)._call("PATCH", path, query={}, body=new):
                    said.append("done")
            except KubeError as error:
                said.append(str(error))
            if "may set the annotation" in said[-1]:
                return
            await asyncio.sleep(0.3)
    pytest.fail(f"not refused, but: {Counter(said)}")
