"""The Lease that says that a plugin lives, and what a time without it means for its GPUNode.

Against the small API server over real HTTP, with a clock of the test's own.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from nodeapi import NODE, Server
from sojourn_api import names
from sojourn_deviceplugin.kube import ApiError

from tests.component.deviceplugin.test_figures import Player

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/team/leases/{names.heartbeat_name('node')}"
SINCE = "2026-02-02T02:02:02Z"


def said(*, status: str) -> dict[str, Any]:
    """A GPUNode's status as somebody wrote it."""
    ready = {"type": names.READY, "status": status, "reason": "Any", "message": ""}
    return {"conditions": [ready | {"lastTransitionTime": SINCE}]}


@pytest.fixture
def player() -> Iterator[Player]:
    server = Server()
    player = Player(server, namespace="team")
    yield player
    player.publisher._kube.close()
    server.crash()


def rounds(player: Player, count: int) -> int:
    """Rounds of a second each; how many failed."""
    failed = 0
    for _ in range(count):
        try:
            player.second()
        except ApiError:
            failed += 1
    return failed


def ready(player: Player) -> dict[str, Any]:
    found = {one["type"]: one for one in player.server.status()["conditions"]}
    return dict(found[names.READY])


def test_it_is_renewed_three_times_in_its_term_and_says_how_long_it_holds(player: Player) -> None:
    rounds(player, names.HEARTBEAT_SECONDS)
    leases = player.server.applied[LEASE]
    assert len(leases) == 3
    assert {one["spec"]["leaseDurationSeconds"] for one in leases} == {names.HEARTBEAT_SECONDS}


def test_a_refused_lease_is_asked_for_as_seldom_as_it_would_be_renewed(player: Player) -> None:
    player.server.forbidden = {"leases"}
    assert rounds(player, names.HEARTBEAT_SECONDS) == 0
    assert player.server.tried.count(LEASE) == 3
    assert player.writes == 1
    player.server.forbidden = set()
    rounds(player, names.HEARTBEAT_SECONDS // 3)
    assert len(player.server.applied[LEASE]) == 1


def test_what_does_not_work_is_logged_once_each(
    player: Player, caplog: pytest.LogCaptureFixture
) -> None:
    player.server.forbidden = {"leases", "events"}
    for _ in range(3):
        player.publisher.tell(reason="Xid62", message="again", warning=True)
        rounds(player, names.HEARTBEAT_SECONDS // 3)
    told = [record.__dict__["error"] for record in caplog.records]
    assert len(told) == 2, told


def test_a_busy_api_server_is_not_asked_to_write_everything_anew(player: Player) -> None:
    rounds(player, 1)
    before = len(player.server.tried)
    player.server.busy = {"events"}
    player.publisher.tell(reason="Xid62", message="it failed", warning=True)
    assert rounds(player, 15) == 15
    assert len(player.server.tried) == before


def test_after_a_time_in_which_the_lease_ran_out_it_is_written_over_with_the_time_of_the_return(
    player: Player,
) -> None:
    """The operator may have said that the plugin is gone, though nothing has changed here."""
    player.server.said = said(status="True")
    rounds(player, 1)
    assert ready(player)["lastTransitionTime"] == SINCE
    player.server.busy = {"leases", "gpunodes"}
    player.now += names.HEARTBEAT_SECONDS
    rounds(player, 1)
    player.server.busy = set()
    player.server.said = said(status="Unknown")
    writes = player.writes
    assert rounds(player, 3) == 0
    assert player.writes == writes + 1
    assert ready(player)["status"] == "True"
    assert ready(player)["lastTransitionTime"] > SINCE


def test_a_plugin_that_restarts_keeps_the_time_since_when_it_is_ready(player: Player) -> None:
    player.server.said = said(status="True")
    rounds(player, 2)
    assert ready(player)["lastTransitionTime"] == SINCE


def test_a_gpunode_that_somebody_deleted_is_back(player: Player) -> None:
    rounds(player, 1)
    player.server.missing = {f"{NODE}/status"}
    player.slices = 31
    assert rounds(player, 1) == 1
    player.server.missing = set()
    player.server.tried.clear()
    rounds(player, 1)
    assert player.server.tried[:2] == [NODE, f"{NODE}/status"]
