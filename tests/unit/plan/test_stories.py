"""What the plan does in small situations that a user would recognise."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from sojourn_operator.plan import (
    Move,
    Nominate,
    Pause,
    Phase,
    PlaceSession,
    Reject,
    Resume,
    Taint,
    Wait,
    Withdraw,
    plan,
)
from sojourn_operator.plan.play import World
from sojourn_operator.plan.state import Nomination, Request

from tests.unit.plan_builders import GOLD, SILVER, TIERS, gpu, node, on, running, session, state

T = TypeVar("T")


def of(kind: type[T], actions: Iterable[object]) -> list[T]:
    return [one for one in actions if isinstance(one, kind)]


def test_a_session_gets_the_tightest_gpu_that_holds_it() -> None:
    cluster = [node("a", 2), node("b", 2)]
    taken = running("old", on("b", 1, slices=30))
    actions = plan(state(cluster, [taken, session("new")])).actions
    (placed,) = of(PlaceSession, actions)
    assert (placed.place.node, placed.place.gpus[0].ordinal) == ("b", 1)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_session_fills_a_small_gpu_rather_than_splitting_a_large_one(
    names: tuple[str, str],
) -> None:
    """2.5 A100-equivalents fit the H100 only: it is kept whole while the A100 serves as well."""
    small, large = names
    cluster = [node(small, (gpu(0),)), node(large, (gpu(0, model="H100"),))]
    silver = session("new", slices=1, share=1000, decode_fraction=250)
    (placed,) = of(PlaceSession, plan(state(cluster, [silver])).actions)
    assert placed.place.node == small


def test_slices_must_be_on_one_gpu_and_the_wait_says_so_in_numbers() -> None:
    cluster = [node("a"), node("node-b", 2)]
    held = [
        running("x", on("a", slices=80)),
        running("y", on("node-b", 0, slices=80)),
        running("z", on("node-b", 1, slices=72)),
    ]
    actions = plan(state(cluster, [*held, session("new", slices=12)], now=10.0)).actions
    (waiting,) = of(Wait, actions)
    assert waiting.reason == "NoRoom"
    assert waiting.message == "needs 12 slices on one GPU; the most free is 8 on node-b gpu-1"


def test_shares_add_up_to_the_capacity_of_the_gpu() -> None:
    h200 = node("h", (gpu(0, 141, "H200"),))
    gold = session("gold", "gold", 20, share=2500)
    first = plan(state([h200], [gold])).actions
    assert len(of(PlaceSession, first)) == 1
    both = plan(state([h200], [gold, session("too", "gold", 20, share=300)])).actions
    (waiting,) = of(Wait, both)
    assert "the most free share is 202" in waiting.message


@pytest.mark.parametrize("last", ["a", "b", "c"])
def test_of_nodes_that_are_about_as_good_a_paused_session_goes_back_to_its_own(last: str) -> None:
    paused = session("s", phase=Phase.PAUSED, place=on(last))
    (back,) = of(Resume, plan(state([node("a"), node("b"), node("c")], [paused])).actions)
    assert back.place.node == last


def test_a_paused_session_does_not_open_a_free_gpu_only_to_be_where_it_was() -> None:
    tight = running("t", on("b", slices=40))
    paused = session("s", phase=Phase.PAUSED, place=on("a"))
    (back,) = of(Resume, plan(state([node("a"), node("b")], [tight, paused])).actions)
    assert back.place.node == "b"


def test_a_paused_session_does_not_go_back_to_a_node_that_refused_it() -> None:
    paused = session("s", phase=Phase.PAUSED, place=on("a"), avoid=("a",))
    (back,) = of(Resume, plan(state([node("a"), node("b")], [paused])).actions)
    assert back.place.node == "b"


def test_a_gpu_that_can_meet_the_time_between_tokens_comes_first() -> None:
    """140 GB of weights in 60 ms are 2,334 GB/s: an H100 can, an A100 cannot."""
    cluster = [node("slow", (gpu(0),)), node("fast", (gpu(0, model="H100"),))]
    asks = session("s", slices=40, share=100, bandwidth=2334)
    (placed,) = of(PlaceSession, plan(state(cluster, [asks])).actions)
    assert placed.place.node == "fast"
    (placed,) = of(PlaceSession, plan(state(cluster[:1], [asks])).actions)
    assert placed.place.node == "slow"


def test_over_two_gpus_each_needs_half_the_bandwidth() -> None:
    cluster = [node("one", (gpu(0, model="L4", slices=24),)), node("two", 2)]
    asks = session("s", slices=40, shards=2, max_shards=2, bandwidth=4000)
    (placed,) = of(PlaceSession, plan(state(cluster, [asks])).actions)
    assert placed.place.node == "two"


def test_a_node_short_of_cpu_is_told_in_numbers_and_only_what_it_lacks() -> None:
    (wait,) = plan(state([node("a")], [session("s", cpu_milli=65_000)])).actions
    assert isinstance(wait, Wait)
    assert wait.message == (
        "needs 40 slices on one GPU; a gpu-0 has that, "
        "but its node has 64000 mCPU free and 65000 are needed"
    )


def test_a_node_that_refused_the_session_is_told_as_left_out() -> None:
    (wait,) = plan(state([node("a")], [session("s", avoid=("a",))])).actions
    assert isinstance(wait, Wait)
    assert wait.message.endswith("; 1 node left out (refused it lately)")
    assert "mCPU" not in wait.message


@pytest.mark.parametrize(
    ("asks", "told"),
    [
        ({"slices": 400}, "400 slices on one GPU; no GPU has 400 slices (the most is 80)"),
        ({"share": 5000}, "a share of 5000; no GPU has a share of 5000 (the most is 1000)"),
        ({"gpu_models": ("B200",)}, "; no healthy GPU of model B200 among 3"),
    ],
)
def test_what_no_gpu_has_is_told_with_the_most_that_there_is(
    asks: dict[str, Any], told: str
) -> None:
    cluster = [node("small", (gpu(0, 24, "L4"),)), node("b", 2)]
    (wait,) = plan(state(cluster, [session("s", **asks)])).actions
    assert isinstance(wait, Wait)
    assert wait.reason == "NoMatchingGPU"
    assert told in wait.message


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (None, ""),
        (Request(slices=80), ""),
        (Request(slices=400), "no GPU has 400 slices (the most is 80)"),
        (Request(slices=100, max_shards=2), ""),
        (Request(slices=400, max_shards=2), "no GPU has 400 slices (the most is 80)"),
        (Request(slices=12, node_selector=(("zone", "z9"),)), "(label zone=z9 is missing)"),
        (Request(slices=12, gpu_models=("L4",)), ""),
    ],
)
def test_of_one_that_runs_it_is_said_whether_it_could_start_again_as_it_is_written_now(
    wish: Request | None, told: str
) -> None:
    """Where there is no room now, or the node is cordoned, it could."""
    cluster = [node("a", 2), node("l4", (gpu(0, 24, "L4"),), schedulable=False)]
    runs = running("s", on("a", slices=12), wish=wish)
    full = [running(str(i), on("a", i, slices=60), "gold") for i in range(2)]
    found = plan(state(cluster, [runs, *full]))
    assert found.actions == ()
    assert list(found.never) == (["llm/s"] if told else [])
    assert told in found.never.get("llm/s", "")


def test_over_how_many_gpus_a_session_finds_no_room_is_no_matter_of_the_gpus_there_are() -> None:
    full = [running(str(i), on("a", i, slices=60)) for i in range(2)]
    asks = session("s", "bronze", slices=100, max_shards=2)
    (wait,) = plan(state([node("a", 2)], [*full, asks])).actions
    assert isinstance(wait, Wait)
    assert wait.reason == "NoRoom"
    assert wait.message.startswith("needs 50 slices on each of 2 GPUs; the most free is 20 on a ")


def test_gpus_on_nodes_that_are_cordoned_or_down_are_waited_for_and_the_nodes_named() -> None:
    cluster = [
        node("small", (gpu(0, 24, "L4"),)),
        *(node(name, schedulable=False) for name in "abcd"),
        node("e", ready=False),
        node("far", labels={}, taints=(Taint("team", "x", "NoSchedule"),), schedulable=False),
    ]
    (wait,) = plan(state(cluster[:3] + cluster[5:], [session("s")])).actions
    assert isinstance(wait, Wait)
    assert wait.reason == "NodesLeftOut"
    assert wait.message == (
        "needs 40 slices on one GPU; the GPUs that could serve it are on a (cordoned), "
        "b (cordoned), e (not ready); kubectl uncordon a b"
    )
    (wait,) = plan(state(cluster[:5], [session("s")])).actions
    assert isinstance(wait, Wait)
    assert wait.message.endswith("c (cordoned) and 1 more; kubectl uncordon a b c and 1 more")


def test_cordoned_nodes_are_no_hope_where_their_gpus_would_not_do_either() -> None:
    cluster = [node("a", (gpu(0, 24, "L4"),), schedulable=False), node("b")]
    (wait,) = plan(state(cluster[:1], [session("s")])).actions
    assert isinstance(wait, Wait)
    assert wait.reason == "NoMatchingGPU"
    full = running("r", on("b", slices=80))
    (wait,) = plan(state(cluster, [full, session("s")])).actions
    assert isinstance(wait, Wait)
    assert wait.reason == "NoRoom"


def test_a_gpu_of_unknown_speed_serves_no_share() -> None:
    odd = node("odd", (gpu(0, 80, "Mystery 9000"),))
    actions = plan(state([odd], [session("s", share=100), session("t")])).actions
    assert [one.session for one in of(PlaceSession, actions)] == ["llm/t"]


def test_model_wish_selector_taint_cordon_and_health_are_honoured() -> None:
    cluster = [
        node("l4", (gpu(0, 24, "L4"),)),
        node("cordoned", schedulable=False),
        node("down", ready=False),
        node("sick", (gpu(0, healthy=False),)),
        node("tainted", taints=(Taint("team", "x", "NoSchedule"),)),
        node("plain"),
        node("good", labels={"zone": "z1"}),
    ]
    wish = session("s", gpu_models=("NVIDIA A100-SXM4-80GB",), node_selector=(("zone", "z1"),))
    (placed,) = of(PlaceSession, plan(state(cluster, [wish])).actions)
    assert placed.place.node == "good"


def test_gold_pauses_the_cheapest_silver_and_names_its_place_first() -> None:
    cluster = [node("a", 2)]
    cheap = running("cheap", on("a", 0, slices=60), save_bytes=10, saved_bytes=5 * 10**6)
    dear = running("dear", on("a", 1, slices=60), save_bytes=99)
    actions = plan(state(cluster, [cheap, dear, session("g", "gold")])).actions
    nominate, pause = actions
    assert isinstance(nominate, Nominate)
    assert nominate.nomination.victims == ("llm/cheap",)
    assert nominate.nomination.place.gpus[0].ordinal == 0
    assert isinstance(pause, Pause)
    assert (pause.session, pause.by, pause.reason) == ("llm/cheap", "llm/g", "Preempted")
    assert pause.message.endswith("; the cheapest of 2 places to make room")
    assert pause.to_save == "10 bytes of its context are still to be saved, 5 MB are saved already"


def test_two_victims_for_one_claimant_name_each_other_and_nothing_unknown() -> None:
    held = [running(name, on("a", 0, slices=40)) for name in ("one", "two")]
    actions = plan(state([node("a")], [*held, session("g", "gold", slices=80)])).actions
    told = {one.session: one.message for one in of(Pause, actions)}
    needs = "paused for llm/g: needs 80 slices on one GPU, made free with"
    assert told == {
        "llm/one": f"{needs} llm/two; no pause as cheap as this makes room elsewhere",
        "llm/two": f"{needs} llm/one; no pause as cheap as this makes room elsewhere",
    }


def test_bronze_goes_before_silver_however_dear() -> None:
    cluster = [node("a", 2)]
    silver = running("s", on("a", 0, slices=60), save_bytes=1)
    bronze = running("b", on("a", 1, slices=60), "bronze", save_bytes=10**9)
    actions = plan(state(cluster, [silver, bronze, session("g", "gold")])).actions
    assert [one.session for one in of(Pause, actions)] == ["llm/b"]


def test_the_most_important_that_still_fit_are_reprieved() -> None:
    old = running("old", on("a", slices=20), since=0.0)
    young = running("young", on("a", slices=20), since=500.0)
    small = running("small", on("a", slices=20), "bronze")
    actions = plan(state([node("a")], [old, young, small, session("g", "gold", 60)])).actions
    assert [one.session for one in of(Pause, actions)] == ["llm/small", "llm/young"]


def test_nobody_is_paused_when_pausing_would_not_be_enough() -> None:
    gold = running("gold", on("a", slices=50), "gold")
    silver = running("s", on("a", slices=30))
    actions = plan(state([node("a")], [gold, silver, session("g", "gold", 40)])).actions
    assert [type(one) for one in actions] == [Wait]


def test_silver_waits_for_a_minimum_run_time_that_gold_ignores() -> None:
    bronze = running("b", on("a", slices=80), "bronze", since=990.0)
    asked = plan(state([node("a")], [bronze, session("s")]))
    assert [type(one) for one in asked.actions] == [Wait]
    assert asked.next_deadline == 990.0 + 30.0
    assert of(Pause, plan(state([node("a")], [bronze, session("g", "gold")])).actions)


def test_freed_room_is_kept_for_its_claimant_until_it_expires() -> None:
    place = on("a", slices=40)
    gold = session("g", "gold", nomination=Nomination(place, ("llm/v",), expires=1050.0))
    leaving = replace(running("v", on("a", slices=80)), phase=Phase.PAUSING)
    rival = session("rival", slices=60)
    kept = plan(state([node("a")], [gold, leaving, rival]))
    assert not of(PlaceSession, kept.actions)
    assert kept.next_deadline == 1050.0
    gone = replace(leaving, phase=Phase.PAUSED, suspend=True)
    actions = plan(state([node("a")], [gold, gone, rival])).actions
    assert [one.session for one in of(PlaceSession, actions)] == ["llm/g"]


def test_an_expired_nomination_is_withdrawn_and_another_place_is_sought() -> None:
    gold = session("g", "gold", nomination=Nomination(on("a"), ("llm/v",), expires=999.0))
    stuck = replace(running("v", on("a", slices=80)), phase=Phase.PAUSING)
    other = running("s", on("b", slices=80))
    actions = plan(state([node("a"), node("b")], [gold, stuck, other])).actions
    assert of(Withdraw, actions)
    assert of(Nominate, actions)


def test_a_higher_claim_takes_room_that_was_kept_for_a_lower_one() -> None:
    silver = session("s", nomination=Nomination(on("a"), ("llm/b",), expires=2000.0))
    bronze = replace(running("b", on("a", slices=80), "bronze"), phase=Phase.PAUSING)
    gold = session("g", "gold", 80)
    actions = plan(state([node("a")], [silver, bronze, gold])).actions
    assert [one.session for one in of(Nominate, actions)] == ["llm/g"]
    assert [one.session for one in of(Withdraw, actions)] == ["llm/s"]


def test_paused_sessions_come_back_oldest_first_but_not_the_suspended() -> None:
    back = [
        session("young", created=5.0, phase=Phase.PAUSED),
        session("old", created=1.0, phase=Phase.PAUSED),
        session("kept", created=0.0, phase=Phase.PAUSED, suspend=True),
    ]
    actions = plan(state([node("a")], back)).actions
    assert [one.session for one in of(Resume, actions)] == ["llm/old", "llm/young"]


def test_a_session_comes_back_in_the_class_of_its_snapshot_or_says_that_it_does_not() -> None:
    fast = node("fast", (gpu(0, 40, kernel_class="k2"),))
    same = node("same", (gpu(0, 80, kernel_class="k1"),))
    back = session("s", phase=Phase.PAUSED, kernel_class="k1")
    (resumed,) = of(Resume, plan(state([fast, same], [back])).actions)
    assert (resumed.place.node, resumed.exact) == ("same", True)
    (resumed,) = of(Resume, plan(state([fast], [back])).actions)
    assert (resumed.place.node, resumed.exact) == ("fast", False)


def test_a_suspended_session_is_paused_and_room_is_not_made_twice() -> None:
    stopping = running("s", on("a", slices=80), suspend=True)
    actions = plan(state([node("a")], [stopping, session("g", "gold")])).actions
    assert [(one.session, one.reason) for one in of(Pause, actions)] == [("llm/s", "Suspended")]
    (nominate,) = of(Nominate, actions)
    assert nominate.nomination.victims == ()


def test_gold_on_a_draining_node_moves_to_a_free_place() -> None:
    gold = running("g", on("a"), "gold")
    actions = plan(state([node("a", draining=True), node("b")], [gold])).actions
    (move,) = actions
    assert isinstance(move, Move)
    assert (move.reason, move.nomination.place.node) == ("NodeDraining", "b")


def test_gold_on_a_draining_node_runs_on_while_room_is_made() -> None:
    gold = running("g", on("a"), "gold")
    silver = running("s", on("b", slices=80))
    actions = plan(state([node("a", draining=True), node("b")], [gold, silver])).actions
    assert [type(one) for one in actions] == [Nominate, Pause]
    assert actions[1].session == "llm/s"


def test_a_drained_session_without_any_home_is_paused() -> None:
    gold = running("g", on("a"), "gold")
    (pause,) = plan(state([node("a", draining=True)], [gold])).actions
    assert isinstance(pause, Pause)
    assert pause.reason == "NodeDraining"


def test_a_session_that_was_just_paused_pauses_nobody_to_come_back() -> None:
    bronze = running("b", on("a", slices=80), "bronze")
    back = session("s", phase=Phase.PAUSED, since=990.0)
    asked = plan(state([node("a")], [bronze, back]))
    assert [type(one) for one in asked.actions] == [Wait]
    assert asked.next_deadline == 990.0 + SILVER.cool_down


def test_shards_go_over_linked_gpus_only_when_one_gpu_has_no_room() -> None:
    small = tuple(gpu(i, 24, "L4", links=(1 - i,)) for i in range(2))
    apart = tuple(gpu(i, 24, "L4") for i in range(2))
    wide = session("w", slices=40, max_shards=2)
    (placed,) = of(PlaceSession, plan(state([node("p", small)], [wide])).actions)
    assert [(use.ordinal, use.slices) for use in placed.place.gpus] == [(0, 20), (1, 20)]
    assert of(Wait, plan(state([node("p", apart)], [wide])).actions)


def test_an_unknown_tier_is_rejected() -> None:
    (reject,) = plan(state([node("a")], [session("s", "platinum")])).actions
    assert isinstance(reject, Reject)
    assert reject.reason == "UnknownTier"


def test_back_off_is_kept_and_a_node_that_refused_is_avoided() -> None:
    later = session("later", not_before=1010.0)
    elsewhere = session("else", avoid=("a",))
    asked = plan(state([node("a")], [later, elsewhere]))
    assert [type(one) for one in asked.actions] == [Wait, Wait]
    assert asked.next_deadline == 1010.0


def test_the_story_gold_comes_silver_pauses_gold_ends_silver_returns() -> None:
    world = World(nodes=[node("a")], tiers=TIERS)
    world.put(session("s", slices=60))

    def live(seconds: int) -> None:
        for _ in range(seconds):
            world.do(plan(world.state()).actions)
            world.advance(1.0)

    def phase(name: str) -> str:
        return str(world.sessions[f"llm/{name}"].phase)

    live(5)
    assert phase("s") == "Running"
    world.put(session("g", GOLD.name, slices=60, created=world.now))
    live(10)
    assert (phase("g"), phase("s")) == ("Running", "Paused")
    world.end("llm/g")
    live(10)
    assert phase("s") == "Running"


def test_gold_over_several_gpus_clears_the_node_with_least_to_free() -> None:
    cluster = [node("a", 3), node("b", 3)]
    held = [running(f"a{i}", on("a", i, slices=60)) for i in range(3)]
    held += [running(f"b{i}", on("b", i, slices=60)) for i in range(2)]
    gold = session("g", "gold", 240, share=2500, max_shards=3, since=990.0)
    actions = plan(state(cluster, [*held, gold])).actions
    (nominate,) = of(Nominate, actions)
    assert [use.share for use in nominate.nomination.place.gpus] == [834, 834, 834]
    assert nominate.nomination.place.node == "b"
    assert sorted(one.session for one in of(Pause, actions)) == ["llm/b0", "llm/b1"]


def test_who_wishes_to_be_spread_gets_the_emptiest_gpu_of_the_emptiest_node() -> None:
    held = [
        *(running(f"a{i}", on("a", i, slices=20)) for i in range(2)),
        running("b", on("b", 0, slices=20)),
    ]
    asks = session("s", slices=20)
    cluster = [node("a", 2), node("b", 2)]
    (packed,) = of(PlaceSession, plan(state(cluster, [*held, asks])).actions)
    assert packed.place.node == "a" or packed.place.gpus[0].ordinal == 0
    apart = session("s", slices=20, spread=True)
    (placed,) = of(PlaceSession, plan(state(cluster, [*held, apart])).actions)
    assert (placed.place.node, placed.place.gpus[0].ordinal) == ("b", 1)


def test_the_least_on_one_gpu_counts_however_many_shards() -> None:
    """24 slices over two GPUs would be 12 on each; the model needs 16 on one."""
    cluster = [node("a", 2)]
    held = [running(f"x{i}", on("a", i, slices=66)) for i in range(2)]
    asks = session("s", "bronze", 24, max_shards=2, minimum_slices=16)
    (wait,) = of(Wait, plan(state(cluster, [*held, asks])).actions)
    assert wait.message.startswith("needs 24 slices on one GPU")
    fewer = session("s", "bronze", 24, max_shards=2, minimum_slices=12)
    (placed,) = of(PlaceSession, plan(state(cluster, [*held, fewer])).actions)
    assert [use.slices for use in placed.place.gpus] == [12, 12]


def test_one_in_its_cool_down_does_not_keep_another_of_its_kind_from_its_claim() -> None:
    """Paused by a drain a moment ago, it may pause nobody yet; a new Gold may."""
    gold = replace(GOLD, cool_down=30.0)
    held = running("s", on("a", slices=80))
    resting = session("old", "gold", 80, phase=Phase.PAUSED, created=0.0, since=990.0)
    fresh = session("new", "gold", 80, created=995.0, since=995.0)
    made = state([node("a")], [held, resting, fresh])
    tiers = {tier.name: tier for tier in (gold, *TIERS[1:])}
    (nominate,) = of(Nominate, plan(replace(made, tiers=tiers)).actions)
    assert nominate.session == "llm/new"
