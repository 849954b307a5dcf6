"""One object that cannot be worked with is told so, and no other object waits for it."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sojourn_api import render
from sojourn_api.names import PAUSED, READY
from sojourn_operator import loop as loops
from sojourn_operator import plan, reasons, view, wants
from sojourn_operator.act.status import of
from sojourn_operator.config import Config
from sojourn_operator.faults import IN_A_ROW, SESSION, Faults, Row
from sojourn_operator.kinds import Kind
from sojourn_operator.loop import Bell, Loop
from sojourn_operator.plan import Phase
from sojourn_operator.seen.cache import Cache, Seen
from sojourn_operator.session import life, pacing

from tests.unit.operator.test_view import gpu_node, world
from tests.unit.pretend_session import TIER, Pretend, pod, session

NOW = 1_767_225_700.0
BAD = ("banana", "NaN", "Infinity", "1e999999", "", "1_000", "\uff11", "-1", "2 ", "0x10", "1" * 65)
ROOM = {"cpu": "2", "memory": "8Gi", "pods": "110", "sojourn.dev/gpu-0": "80"}
SPEC = {
    "uri": "file:///m",
    "weightBytes": 1 << 28,
    "kvBytesPerToken": 1 << 10,
    "layers": 1,
    "heads": 1,
    "kvHeads": 1,
    "contextLength": 1024,
}


SUSPEND = {"suspend": True}


class Server:
    """An API server that takes every write; what it was told is kept."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.pods: list[str] = []
        self.deleted: list[str] = []
        self.kept: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 100

    def _stamped(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        meta = {"uid": f"uid-{self.version}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        meta |= {**body["metadata"], "resourceVersion": str(self.version)}
        return {**body, "metadata": meta}

    def create(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        if kind.name == "Event":
            self.events.append((body["involvedObject"]["name"], body["reason"], body["message"]))
        if kind.name == "Pod":
            self.pods.append(body["metadata"]["name"])
        return self._stamped(body)

    def apply(self, kind: Kind, body: dict[str, Any], *, subresource: str = "") -> dict[str, Any]:
        key = kind.name, body["metadata"]["name"]
        old = self.kept.get(key, {"metadata": {}})
        parts = ("status",) if subresource else ("spec",)
        new = {**old, **{part: body[part] for part in parts if part in body}}
        new["metadata"] = {**old["metadata"], **body["metadata"]}
        self.kept[key] = self._stamped(new)
        return self.kept[key]

    def set_finalizers(
        self, kind: Kind, wanted: list[str], *, held: tuple[str, ...], name: str, **found: str
    ) -> dict[str, Any]:
        """Where the object is known, they must be as `held`."""
        old = self.kept.get((kind.name, name), {"metadata": {}})
        assert old["metadata"].get("finalizers", list(held)) == list(held)
        meta = {**old["metadata"], **found, "name": name, "finalizers": wanted}
        self.kept[kind.name, name] = self._stamped({**old, "metadata": meta})
        return self.kept[kind.name, name]

    def delete(self, kind: Kind, *, name: str, **_: Any) -> dict[str, Any]:
        self.deleted.append(f"{kind.name} {name}")
        return {}

    def list(self, _: Kind, **__: Any) -> tuple[list[dict[str, Any]], int]:
        return [], self.version


class Rig:
    """A loop over a cache that is filled by hand, with one node."""

    def __init__(self, config: Config | None = None) -> None:
        self.server = Server()
        self.cache = Cache(lambda: None)
        self.loop = Loop(
            self.server,  # type: ignore[arg-type]
            cache=self.cache,
            bell=Bell(),
            leads=lambda: True,
            config=config or Config(device="cpu"),
            runtimes=dict,
        )
        model = raw({"metadata": {"name": "smollm2"}, "spec": SPEC})
        self.server.kept["LLMModel", "smollm2"] = model
        self.cache.models.offer(model)
        self.cache.tiers.offer(raw(render.tier_to_raw(TIER)))
        self.put_node("node-a")

    def put_node(self, name: str, *, version: int = 5, cordoned: bool = False) -> None:
        self.cache.gpu_nodes.offer(raw(render.gpu_node_to_raw(gpu_node(name))))
        self.cache.nodes.offer(
            raw(
                {
                    "metadata": {"name": name, "resourceVersion": str(version)},
                    "spec": {"unschedulable": cordoned},
                    "status": {
                        "conditions": [{"type": "Ready", "status": "True"}],
                        "allocatable": ROOM,
                    },
                }
            )
        )

    def add(self, name: str, template: dict[str, Any]) -> None:
        found = raw(render.session_to_raw(session(template=template)))
        found["metadata"] |= {"name": name, "namespace": "team", "uid": f"uid-{name}"}
        self.server.kept["LLMSession", name] = found
        self.cache.sessions.offer(found)

    def ready(self, name: str) -> tuple[str, str, str]:
        seen = self.cache.sessions.get(f"team/{name}")
        assert seen is not None
        found = of(seen.session.status, READY)
        return found.status, found.reason, found.message

    def rejected(self, name: str) -> list[str]:
        told = self.server.events
        return [text for who, reason, text in told if (who, reason) == (name, "Rejected")]


def raw(found: dict[str, Any]) -> dict[str, Any]:
    meta = {"uid": f"uid-{found['metadata']['name']}", "resourceVersion": "5", "generation": 1}
    meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {**found, "metadata": meta | found["metadata"]}


def amounts(part: str, name: str, amount: object) -> dict[str, Any]:
    return {"resources": {part: {name: amount}}}


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("part", "name"), [("requests", "cpu"), ("limits", "memory")])
def test_a_bad_quantity_is_named_and_the_others_start(
    rig: Rig, bad: str, part: str, name: str
) -> None:
    rig.add("bad", amounts(part, name, bad))
    rig.add("good", amounts("requests", "cpu", "500m"))
    for later in range(3):
        rig.loop.run_once(NOW + later)
    status, reason, message = rig.ready("bad")
    assert (status, reason) == ("False", reasons.INVALID_TEMPLATE)
    assert f"spec.template.resources.{part}.{name}: " in message
    assert "64Gi" in message
    assert len(rig.rejected("bad")) == 1
    assert rig.server.pods == ["good-1"]


def test_a_session_that_could_not_start_again_is_paused_all_the_same(rig: Rig) -> None:
    rig.add("chat", {})
    for later in range(3):
        rig.loop.run_once(NOW + later)
    assert rig.server.pods == ["chat-1"]
    rig.cache.models.forget("smollm2", uid="uid-smollm2")
    found = rig.server.kept["LLMSession", "chat"]
    rig.cache.sessions.offer(rig.server._stamped({**found, "spec": found["spec"] | SUSPEND}))
    for later in range(3, 6):
        rig.loop.run_once(NOW + later)
    assert set(rig.server.deleted) == {"Pod chat-1"}
    seen = rig.cache.sessions.get("team/chat")
    assert seen is not None
    assert of(seen.session.status, PAUSED).reason == reasons.SUSPENDED


def explode(_: object, *__: object, **___: object) -> Any:
    raise OverflowError("beyond everything")


@pytest.mark.parametrize(
    ("module", "function"),
    [(life, "look"), (pacing, "not_before"), (pacing, "blocked_by_failure"), (view, "_request")],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_fault_over_one_session_is_told_there_and_the_others_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, module: Any, function: str
) -> None:
    honest = getattr(module, function)

    def poisoned(first: Any, *rest: Any, **named: Any) -> Any:
        found = getattr(getattr(first, "seen", first), "session", first)
        return (explode if found.meta.name == "bad" else honest)(first, *rest, **named)

    monkeypatch.setattr(module, function, poisoned)
    rig.add("bad", {})
    rig.add("good", {})
    before = REGISTRY.get_sample_value("sojourn_operator_errors_total", {"step": "read"}) or 0.0
    for later in range(3):
        rig.loop.run_once(NOW + later)
    status, reason, message = rig.ready("bad")
    assert (status, reason) == ("False", reasons.INVALID_SPEC)
    assert "OverflowError: beyond everything" in message
    assert len(rig.rejected("bad")) == 1
    assert rig.server.pods == ["good-1"]
    after = REGISTRY.get_sample_value("sojourn_operator_errors_total", {"step": "read"})
    assert after is not None
    assert after > before


def test_a_session_that_cannot_be_translated_keeps_the_room_that_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Pretend()
    found.place()
    monkeypatch.setattr(pacing, "idle", explode)
    parts = {"pods": {"team/chat-1": pod(1, node="node-a", slices={0: 12})}}
    state = view.View().state(world(found.session, **parts), blocked=frozenset())
    assert state.sessions == {}
    assert state.nodes["node-a"].gpus[0].slices == 68, "its pod's slices are taken"


def test_a_placed_session_with_a_fault_in_its_spec_is_planned_as_what_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Pretend()
    found.place()
    monkeypatch.setattr(wants, "pod_resources", explode)
    parts = {"pods": {"team/chat-1": pod(1, node="node-a", slices={0: 12}, cpu_milli=300)}}
    kept = (
        view.View().state(world(found.session, **parts), blocked=frozenset()).sessions["team/chat"]
    )
    assert (kept.phase, kept.request.slices) == (Phase.STARTING, 12)


def test_a_fault_over_a_node_leaves_out_that_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_node", explode)
    faults = Faults()
    state = view.View(faults).state(world(session()), blocked=frozenset())
    assert state.nodes == {}
    assert isinstance(state.sessions["team/chat"], plan.Session)


def test_an_object_that_no_parser_expects_is_absent_and_ends_no_list(rig: Rig) -> None:
    poison = raw({"metadata": {"name": "odd"}, "status": {"allocatable": {"cpu": "NaN"}}})
    good = raw({"metadata": {"name": "fine"}, "status": {"allocatable": {"cpu": "2"}}})
    rig.cache.nodes.replace([poison, good], version=9)
    assert "fine" in rig.cache.nodes.values()
    assert rig.cache.nodes.unreadable() == {"odd"}


def test_a_fault_is_logged_once_and_told_as_long_as_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults()
    for _ in range(3):
        faults.begin()
        assert faults.tried(SESSION, "team/chat", lambda: explode(None)) is None
        assert "OverflowError" in faults.sessions()["team/chat"]
    assert len(caplog.records) == 1
    faults.begin()
    assert faults.sessions() == {}


def test_passes_that_fail_in_a_row_are_told_until_one_works() -> None:
    row = Row()
    for _ in range(IN_A_ROW - 1):
        row.failed(KeyError("x"))
        assert row.trouble() == ""
    row.failed(KeyError("x"))
    assert row.trouble().startswith("3 passes in a row failed")
    assert "KeyError" in row.trouble()
    assert REGISTRY.get_sample_value("sojourn_operator_failed_passes") == 3
    row.worked()
    assert row.trouble() == ""
    assert REGISTRY.get_sample_value("sojourn_operator_failed_passes") == 0


def test_a_loop_whose_passes_fail_says_so_until_one_works(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "FAULT_SECONDS", 0.01)
    monkeypatch.setattr(rig.cache, "relist", explode)
    rig.loop.start()
    try:
        until(rig.loop.trouble)
        assert "OverflowError: beyond everything" in rig.loop.trouble()
        monkeypatch.setattr(rig.cache, "relist", lambda _: rig.cache.synced.set())
        until(lambda: not rig.loop.trouble())
    finally:
        rig.loop.stop()


def until(found: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_seen_keeps_what_is_wrong(rig: Rig) -> None:
    rig.add("bad", amounts("requests", "cpu", "banana"))
    seen = rig.cache.sessions.get("team/bad")
    assert isinstance(seen, Seen)
    assert "'banana'" in seen.template_problem
