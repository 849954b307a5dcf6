"""Simulations run every job for its whole time, however often it is paused."""

from math import inf

import pytest
from sojourn_operator.plan import Session
from sojourn_operator.plan.measure import fill_of
from sojourn_operator.plan.mix import mix_of
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.play import World
from sojourn_operator.plan.simulate import Job, Simulation

from tests.unit.plan_builders import TIERS, gpu, node, on, running, session


def simulate(*jobs: tuple[Session, float, float]) -> Simulation:
    world = World(nodes=[node("a")], tiers=TIERS, start_seconds=2.0, stop_seconds=3.0)
    simulation = Simulation(world, [Job(*job) for job in jobs], every=10.0)
    samples = list(simulation.run())
    assert samples[-1].done == len(jobs)
    return simulation


def test_a_paused_job_runs_its_whole_time_in_two_parts() -> None:
    silver = session("s", slices=60)
    gold = session("g", "gold", 60)
    found = simulate((silver, 0.0, 100.0), (gold, 50.0, 40.0)).fates
    assert found["llm/g"].pauses == 0
    assert found["llm/g"].ended == pytest.approx(50 + 3 + 2 + 40, abs=0.1)
    # 48 seconds run before the pause, 52 after it; gold's pod ends 3 seconds after its work.
    assert found["llm/s"].pauses == 1
    assert found["llm/s"].ended == pytest.approx(95 + 3 + 2 + 52, abs=0.2)
    assert found["llm/s"].waited == pytest.approx(45, abs=0.2)


def test_waiting_jobs_start_when_others_end() -> None:
    jobs = [(session(f"s{i}", slices=60), float(i), 20.0) for i in range(3)]
    found = simulate(*jobs).fates
    ends = [fate.ended or 0.0 for fate in found.values()]
    assert ends == sorted(ends)
    assert found["llm/s2"].waited == pytest.approx(48, abs=0.5)


def test_every_session_is_counted_once_whatever_it_is_doing() -> None:
    """One that ended and whose pod is still there is done, and not paused too."""
    jobs = [Job(session(f"s{i}", slices=60), float(i), 20.0) for i in range(3)]
    world = World(nodes=[node("a")], tiers=TIERS, start_seconds=2.0, stop_seconds=3.0)
    for sample in Simulation(world, jobs, every=1.0).run():
        come = sum(job.arrival <= sample.time for job in jobs)
        assert sample.running + sample.waiting + sample.paused + sample.done == come


def test_sessions_that_are_there_stay_where_they_are_and_their_moves_are_counted() -> None:
    """Of two that run, the one on the cordoned node that is drained starts again on the other."""
    nodes = [node("a", draining=True), node("b")]
    here = [running("s", on("a")), running("o", on("b", slices=20))]
    world = World(nodes=nodes, tiers=TIERS)
    jobs = [Job(one, arrival=0.0, duration=inf, there=True) for one in here]
    simulation = Simulation(world, jobs, every=10.0)
    first, *_ = simulation.run()
    fates = simulation.fates
    assert first.running + first.paused == 2
    assert first.waiting == 0
    assert (fates["llm/s"].moves, fates["llm/o"].moves) == (1, 0)
    assert (fates["llm/s"].pauses, fates["llm/s"].ended) == (0, None)
    assert fates["llm/o"].started == 0.0
    place = world.sessions["llm/s"].place
    assert place is not None
    assert place.node == "b"


def test_fill_scatter_and_stranded_room_in_numbers() -> None:
    placer = Placer(nodes=[node("a", (gpu(0), gpu(1), gpu(2, healthy=False)))])
    small, large = session("s", slices=20).request, session("l", slices=70).request
    placer.take(placer.take_at(on("a", 0, slices=20), small))
    found = fill_of(placer, mix_of([small, large]))
    assert found.slices == pytest.approx(100 * 20 / 160)
    assert found.scatter == pytest.approx(100 * 60 / 140)
    # The small one can use all that is free; the large one only the second GPU.
    assert found.stranded == pytest.approx(100 * (0 + 750) / 2 / 1750)
