"""The kept-up index answers like rating every node anew."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_operator.plan import Mix, Request
from sojourn_operator.plan.index import BACKLOG, tie_of
from sojourn_operator.plan.mix import mix_of
from sojourn_operator.plan.placer import Placer

from tests.unit.plan_builders import gpu, node

KINDS = [("A100-80GB", 80), ("H200", 141), ("L4", 24)]


def some_requests(rng: random.Random) -> list[Request]:
    return [
        Request(
            slices=rng.choice([4, 10, 20, 40]),
            share=rng.choice([0, 100, 200]),
            shards=(shards := rng.choice([1, 1, 1, 2])),
            max_shards=shards,
            cpu_milli=rng.choice([500, 2000, 16_000]),
            gpu_models=rng.choice([(), (), ("L4",), ("A100-80GB", "H200")]),
            spread=rng.random() < 0.1,
        )
        for _ in range(12)
    ]


def anew(placer: Placer, request: Request) -> str | None:
    """The best node by looking at all of them."""
    rated = []
    for name, room in placer.rooms.items():
        need = placer.index.need(room, request, request.shards)
        fresh = room.copy()
        if need is not None and room.usable:
            score = placer.policy.score(fresh, need)
            if score is not None:
                rated.append((score, tie_of(name), name))
    return max(rated)[2] if rated else None


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("unknown", "coming", "passing")))
def test_incremental_and_full_decisions_are_equal(seed: int, mix: str) -> None:
    rng = random.Random(seed)  # noqa: S311
    requests = some_requests(rng)
    nodes = [
        node(f"n{i}", tuple(gpu(g, slices, model, links=(0, 1, 2, 3)) for g in range(4)))
        for i in range(8)
        for model, slices in [rng.choice(KINDS)]
    ]
    placer = Placer(nodes=nodes)
    known = Mix() if mix == "unknown" else mix_of(requests)
    placer.retune(replace(known, passing=mix == "passing"))
    inside: list[Any] = []
    for _ in range(BACKLOG // 2):
        request = rng.choice(requests)
        place = placer.find(request, request.shards)
        assert (place.node if place else None) == anew(placer, request)
        if place is not None:
            inside.append(placer.take_at(place, request))
            placer.take(inside[-1])
        while inside and rng.random() < 0.4:
            placer.give(inside.pop(rng.randrange(len(inside))))
        if rng.random() < 0.02:
            one = rng.choice(nodes)
            placer.drop_node(one.name)
            placer.put_node(replace(one, schedulable=rng.random() < 0.5))
            inside = [what for what in inside if what.node != one.name]


def test_a_refused_node_is_passed_over_once_and_not_forgotten() -> None:
    placer = Placer(nodes=[node("a"), node("b")])
    request = Request(slices=8)
    best = placer.find(request, 1)
    assert best is not None
    other = placer.find(request, 1, accept=lambda name: name != best.node)
    assert other is not None
    assert other.node != best.node
    assert placer.find(request, 1) == best


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_in_which_nodes_come_changes_nothing(order: int) -> None:
    nodes = [node(f"n{i}") for i in range(9)][::order]
    place = Placer(nodes=nodes).find(Request(slices=8), 1)
    assert place is not None
    assert place.node == max((one.name for one in nodes), key=tie_of)
