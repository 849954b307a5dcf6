"""The cache: the later version counts, whichever way it comes, and what is deleted stays gone."""

from collections.abc import Iterator
from typing import Any

import pytest
from sojourn_api.names import ANNOTATION_GPUS, LABEL_EPOCH, LABEL_SESSION
from sojourn_operator import kinds
from sojourn_operator.seen.cache import Cache, Table
from sojourn_operator.seen.node import Node, parse_node


def node(name: str, version: int, *, uid: str = "", ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


@pytest.fixture
def rung() -> list[int]:
    return []


@pytest.fixture
def nodes(rung: list[int]) -> Table[Node]:
    return Table(kinds.NODES, parse_node, wake=lambda: rung.append(1))


def test_a_change_wakes_and_an_old_version_does_not(nodes: Table[Node], rung: list[int]) -> None:
    assert nodes.offer(node("a", 5))
    assert not nodes.offer(node("a", 5))
    assert not nodes.offer(node("a", 4, ready=False))
    assert nodes.values()["a"].ready
    assert len(rung) == 1


def test_what_is_deleted_is_not_revived_by_a_late_answer(nodes: Table[Node]) -> None:
    nodes.offer(node("a", 5))
    nodes.drop(node("a", 6))
    assert not nodes.offer(node("a", 7))
    assert nodes.values() == {}


def test_a_new_object_of_the_old_name_is_another_one(nodes: Table[Node]) -> None:
    nodes.offer(node("a", 5))
    nodes.offer(node("a", 8, uid="uid-later"))
    nodes.drop(node("a", 7))
    assert list(nodes.values()) == ["a"]


def test_a_relist_drops_ghosts_and_keeps_what_is_newer_than_itself(nodes: Table[Node]) -> None:
    nodes.offer(node("ghost", 5))
    nodes.offer(node("kept", 6))
    nodes.offer(node("young", 20))
    assert nodes.replace([node("kept", 6)], version=10) == 1
    assert sorted(nodes.values()) == ["kept", "young"]


def test_a_watch_that_never_spoke_is_told_once_a_list_has_news(nodes: Table[Node]) -> None:
    """Seen where only the watches went by a name that the DNS did not know."""
    assert not nodes.unheard()
    nodes.replace([], version=1)
    assert not nodes.unheard(), "it had nothing to tell"
    nodes.replace([node("a", 5)], version=5)
    assert nodes.unheard()
    nodes.replace([node("a", 5)], version=6)
    assert nodes.unheard()
    nodes.heard()
    nodes.replace([node("a", 5)], version=7)
    assert not nodes.unheard()


def test_a_watch_that_speaks_while_a_list_is_read_owes_nothing(nodes: Table[Node]) -> None:
    def listed() -> Iterator[dict[str, Any]]:
        yield node("a", 5)
        nodes.heard()

    nodes.replace(listed(), version=5)
    assert not nodes.unheard()


def test_a_watch_that_falls_silent_is_told_by_the_next_correction(nodes: Table[Node]) -> None:
    nodes.heard()
    nodes.offer(node("a", 5))
    nodes.replace([node("a", 8)], version=8)
    assert nodes.unheard()


def test_an_object_that_cannot_be_read_counts_as_absent(nodes: Table[Node]) -> None:
    broken = node("a", 5)
    broken["status"]["allocatable"] = {"cpu": "many"}
    nodes.offer(broken)
    assert nodes.values() == {}
    assert nodes.unreadable() == {"a"}
    nodes.offer(node("a", 6))
    assert list(nodes.values()) == ["a"]


def test_a_session_with_an_unreadable_spec_still_says_what_it_holds() -> None:
    cache = Cache(lambda: None)
    raw = {
        "metadata": {"name": "c", "namespace": "t", "uid": "u", "resourceVersion": "1"},
        "spec": {"model": 5, "tier": "silver"},
        "status": {"epoch": 4},
    }
    cache.sessions.offer(raw)
    seen = cache.sessions.values()["t/c"]
    assert seen.session.status.epoch == 4
    assert seen.problem.startswith("spec.model")


def test_a_pod_is_known_by_its_name_and_owner_whatever_was_done_to_its_labels() -> None:
    cache = Cache(lambda: None)
    meta = {
        "name": "chat-3",
        "namespace": "t",
        "uid": "u",
        "resourceVersion": "1",
        "labels": {LABEL_SESSION: "other", LABEL_EPOCH: "x"},
        "annotations": {ANNOTATION_GPUS: "spoilt"},
        "ownerReferences": [{"name": "chat", "uid": "uid-chat"}],
    }
    cache.pods.offer({"metadata": meta})
    found = cache.pods.values()["t/chat-3"]
    assert (found.key, found.epoch, found.owner_uid) == ("t/chat", 3, "uid-chat")


def test_the_pod_that_purges_is_no_start() -> None:
    cache = Cache(lambda: None)
    owner = {"name": "chat", "uid": "uid-chat"}
    meta = {"name": "chat-purge", "namespace": "t", "uid": "u", "resourceVersion": "1"}
    cache.pods.offer({"metadata": meta | {"ownerReferences": [owner]}})
    assert cache.pods.values()["t/chat-purge"].epoch == 0
