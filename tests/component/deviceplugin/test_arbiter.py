"""The arbiter between processes: order, death, stops, and turns among equals."""

import json
import subprocess
import sys
from bisect import bisect_left
from pathlib import Path
from typing import IO, Any

import arbiterplayers
import pytest
from sojourn_api import arbiter


def player(role: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, arbiterplayers.__file__, role, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def said(pipe: IO[str] | None) -> dict[str, Any]:
    assert pipe is not None
    line: dict[str, Any] = json.loads(pipe.readline())
    return line


def grants(folder: Path, *tiers: arbiter.Tier) -> Path:
    index = arbiter.create_index(folder)
    for number, tier in enumerate(tiers, start=1):
        arbiter.create_grant(folder, str(number), tier)
    arbiter.bump(index)
    return folder


def test_no_silver_step_begins_once_golds_flag_is_visible(tmp_path: Path) -> None:
    folder = grants(tmp_path, arbiter.Tier(priority=2500), arbiter.Tier(priority=1000))
    with player("silver", folder, 2, 4, 30) as silver, player("gold", folder, 1, 10_000) as gold:
        assert said(silver.stdout)["ready"]
        assert said(gold.stdout)["ready"]
        up, steps = said(gold.stdout), said(silver.stdout)
    rises, falls = up["rises"], up["falls"]
    assert len(rises) == 10_000
    begun = 0
    for look, seen in zip(steps["looks"], steps["seen"], strict=True):
        request = bisect_left(rises, look) - 1  # the last rise that was over before the look
        assert request < 0 or seen > falls[request], "a step began under a visible flag"
        begun += 1
    assert begun > 100


@pytest.mark.timeout(120)
def test_killed_and_stopped_owners_hold_nobody_up(tmp_path: Path) -> None:
    with player("riot", tmp_path, 1000, 7) as riot:
        result = said(riot.stdout)
    assert (result["wrong"], result["stuck"]) == (0, 0)
    assert not result["left"]
    assert not result["idle"], "of every tier somebody computed, and all of its equals"


def test_equals_compute_in_proportion_to_their_shares(tmp_path: Path) -> None:
    tiers = [
        arbiter.Tier(priority=1000, share=share, time_slice_ns=20_000_000) for share in (1000, 2000)
    ]
    folder = grants(tmp_path, *tiers)
    with player("equal", folder, 1, 4, 5000) as one, player("equal", folder, 2, 4, 5000) as two:
        for process in (one, two):
            assert said(process.stdout)["ready"]
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        first, second = said(one.stdout)["computed"], said(two.stdout)["computed"]
    assert second / first == pytest.approx(2.0, rel=0.05)
    assert first + second < 4.4e9  # in turns, not at once
    assert first + second > 3.0e9  # and hardly idle
