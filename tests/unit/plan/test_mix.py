"""A mix trails the sessions with hysteresis, and knows whether they come and go."""

from sojourn_operator.plan import Mix, Request
from sojourn_operator.plan.mix import LATELY, Flow, follow, mix_of
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.score import PASSING, Policy, Weights

from tests.unit.plan_builders import node, on

SMALL, LARGE = Request(slices=4), Request(slices=40)


def test_a_small_change_keeps_the_object_and_a_large_one_does_not() -> None:
    before = mix_of([SMALL] * 10 + [LARGE] * 10)
    assert follow(before, [SMALL] * 11 + [LARGE] * 9) is before
    after = follow(before, [SMALL] * 18 + [LARGE] * 2)
    assert dict(after.counts) == {SMALL: 18, LARGE: 2}


def test_growth_to_twice_the_size_counts_as_news_and_emptiness_does_not() -> None:
    first = follow(Mix(), [SMALL])
    assert first.total == 1
    assert follow(first, [SMALL] * 3).total == 3
    assert follow(first, []) is first


def test_sessions_that_only_come_do_not_pass_through_however_many() -> None:
    flow = Flow()
    for number in range(20):
        assert not flow.look({f"s{i}" for i in range(number * LATELY)})


def test_sessions_pass_through_once_half_as_many_leave_as_come_until_hardly_any_does() -> None:
    flow = Flow()
    flow.count(came=3 * LATELY)
    seen = []
    for _ in range(LATELY):
        flow.count(came=5, went=4)
        seen.append(flow.passing)
    assert seen == sorted(seen)
    assert seen[-1]
    flow.count(came=2 * LATELY, went=LATELY * 6 // 10)
    assert flow.passing
    for _ in range(LATELY):
        flow.count(came=5, went=1)
    assert not flow.passing


def test_only_who_came_and_went_between_two_looks_counts() -> None:
    flow = Flow()
    for _ in range(LATELY):
        assert not flow.look({"stays"})
    for number in range(LATELY):
        flow.look({"stays", f"s{number}"})
    assert flow.passing


def test_a_mix_that_begins_to_pass_through_is_another_mix_and_then_kept() -> None:
    before = mix_of([SMALL] * 10)
    passing = follow(before, [SMALL] * 10, passing=True)
    assert (passing.counts, passing.passing) == (before.counts, True)
    assert follow(passing, [SMALL] * 10, passing=True) is passing
    assert follow(passing, [SMALL] * 10) == before


def test_the_policy_packs_by_other_weights_where_sessions_pass_through() -> None:
    policy = Policy()
    policy.retune(Mix(passing=True), [])
    assert policy.weights == PASSING
    policy.retune(Mix(), [])
    assert policy.weights == Weights()


def test_the_square_fills_the_fuller_gpu_where_prices_are_equal() -> None:
    part, half = Request(slices=16), Request(slices=40)

    def costs(square: float) -> list[int | None]:
        weights = Weights(square=square, step=1.0)
        placer = Placer(Policy(weights), [node("fuller"), node("emptier")])
        placer.retune(mix_of([part] * 5 + [half] * 2))
        for name, slices in (("fuller", 48), ("emptier", 32)):
            placer.take(placer.take_at(on(name, slices=slices), Request(slices=slices)))
        return [placer.index.score(part, 1, name) for name in ("fuller", "emptier")]

    fuller, emptier = costs(square=0.0)
    assert fuller == emptier
    fuller, emptier = costs(square=0.5)
    assert fuller is not None
    assert emptier is not None
    assert fuller > emptier
