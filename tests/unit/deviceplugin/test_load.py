"""How busy GPUs were lately."""

import pytest
from sojourn_api.objects import GpuLoad
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts
from sojourn_deviceplugin.load import MEMORY_SECONDS, Means, folded


def facts(busy: int | None = None, sm: int | None = None, error: str = "") -> NodeFacts:
    return NodeFacts(gpus=(GpuFacts(uuid="g", busy_percent=busy, sm_percent=sm, error=error),))


def test_the_first_look_counts_in_full() -> None:
    assert folded({}, facts(80), seconds=0)["g"] == Means(busy=80)


def test_a_mean_follows_what_lasts_and_not_what_flashes_by() -> None:
    loads = folded({}, facts(0), seconds=1)
    loads = folded(loads, facts(100), seconds=1)
    assert loads["g"].rounded().busy == 2
    for _ in range(5 * round(MEMORY_SECONDS)):
        loads = folded(loads, facts(100), seconds=1)
    assert loads["g"].rounded().busy == 99


def test_one_long_pause_between_looks_weighs_like_many_short_ones() -> None:
    start = {"g": Means(busy=0)}
    short = start
    for _ in range(30):
        short = folded(short, facts(100), seconds=1)
    assert short["g"].busy == pytest.approx(folded(start, facts(100), seconds=30)["g"].busy)


def test_what_is_not_told_is_unknown() -> None:
    before = {"g": Means(busy=50, sm=50)}
    assert folded(before, facts(50), seconds=1)["g"].rounded() == GpuLoad(busy=50)
    assert folded(before, facts(error="lost"), seconds=1) == {}
    assert folded(before, NodeFacts(error="no NVML"), seconds=1) == {}
