"""What the GPUNode tells of load and allocators, and how often it is written for them.

Against the small API server over real HTTP, with a clock of the test's own.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from nodeapi import NODE, Server
from sojourn_api.access import Access
from sojourn_api.arbiter import Allocator, PageState
from sojourn_api.parse import parse_gpu_node
from sojourn_deviceplugin import health, registry
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts
from sojourn_deviceplugin.kube import Kube
from sojourn_deviceplugin.ledger import Grant, Holder
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.node import Publisher
from sojourn_deviceplugin.offers import Offer, Snapshot

GIB = 1024**3
MINUTE = range(59)
"""Seconds, less than those after which an unchanged status is renewed."""


@dataclass
class Player:
    """One GPU with one session on it, and a second hand."""

    server: Server
    busy: int | None = 50
    sm: int | None = None
    slices: int = 30
    used: int | None = 5 * GIB
    told_seconds_ago: float = 0.0
    now: float = 1000.0
    namespace: str = ""
    publisher: Publisher = field(init=False)

    def __post_init__(self) -> None:
        kube = Kube(Access(url=f"http://127.0.0.1:{self.server.server_port}"))
        self.publisher = Publisher(
            kube,
            "node",
            self.snapshot,
            Metrics(),
            page=self.page,
            namespace=self.namespace,
            clock=lambda: self.now,
        )

    def snapshot(self) -> Snapshot:
        gpu = GpuFacts(
            uuid="GPU-0",
            model="NVIDIA H200",
            total_bytes=141 * GIB,
            busy_percent=self.busy,
            sm_percent=self.sm,
        )
        (known,) = registry.enroll({}, (gpu,), Config()).values()
        devices = frozenset(map(str, range(self.slices)))
        grant = Grant(0, devices, "1", 0, Holder("a", "x-1", "runtime"))
        facts = NodeFacts(gpus=(gpu,), driver="1", session=1)
        return facts, (Offer(known, health.HEALTHY),), (grant,)

    def page(self, _: Grant) -> PageState:
        inside = None
        if self.used is not None:
            at_ns = time.monotonic_ns() - int(self.told_seconds_ago * 1e9)
            inside = Allocator(at_ns, 8 * GIB, self.used, None, 8 * GIB - self.used)
        return PageState(0, 0, 0, 0, 0, False, 0, 0, 0, 0, True, inside)  # noqa: FBT003

    def second(self) -> None:
        self.now += 1
        self.publisher.round()

    @property
    def writes(self) -> int:
        return len(self.server.applied.get(f"{NODE}/status", ()))

    def gpu(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.status()["gpus"][0]
        return found


@pytest.fixture
def player() -> Iterator[Player]:
    server = Server()
    player = Player(server)
    player.second()
    yield player
    player.publisher._kube.close()
    server.crash()


def test_what_is_known_is_written_as_the_contract_reads_it(player: Player) -> None:
    raw = {"metadata": {"name": "node", "uid": "u"}, "status": player.server.status()}
    node = parse_gpu_node(raw)
    (gpu,) = node.gpus
    assert (gpu.load.busy, gpu.load.sm, gpu.load.bandwidth) == (50, None, None)
    (use,) = gpu.allocators
    assert (use.pod, use.reserved, use.used) == ("a/x-1", 8 * GIB, 5 * GIB)
    assert (use.inactive_split, use.largest_free) == (None, 3 * GIB)
    assert [(entry.size, entry.slices) for entry in node.stranded] == [(30, 0)]


def test_noise_is_no_reason_to_write(player: Player) -> None:
    for second in MINUTE:
        player.busy = 30 + 40 * (second % 2)
        player.used = 5 * GIB + (second % 3) * GIB // 8
        player.second()
    assert player.writes == 1


def test_a_lasting_change_of_load_is_written_few_times(player: Player) -> None:
    player.busy = 100
    for _ in MINUTE:
        player.second()
    assert player.gpu()["load"]["busyPercent"] > 60
    assert 1 < player.writes <= 1 + 59 / 15


def test_a_change_of_slices_is_written_at_once(player: Player) -> None:
    player.slices = 31
    player.second()
    assert player.writes == 2
    assert player.gpu()["freeSlices"] == player.gpu()["slices"] - 31


def test_an_allocator_that_has_not_told_lately_is_unknown_at_once(player: Player) -> None:
    player.told_seconds_ago = 61
    player.second()
    assert "allocators" not in player.gpu()
    player.told_seconds_ago = 0
    player.used = None
    player.second()
    assert "allocators" not in player.gpu()
    assert player.writes == 2


def test_a_gpu_that_tells_more_is_told_of(player: Player) -> None:
    player.sm = 20
    for _ in range(15):
        player.second()
    assert player.gpu()["load"] == {"busyPercent": 50, "smPercent": 20}
    player.sm = None
    player.second()
    assert player.gpu()["load"] == {"busyPercent": 50}


def test_an_unchanged_status_is_renewed_after_a_minute(player: Player) -> None:
    for _ in range(62):
        player.second()
    assert player.writes == 2
