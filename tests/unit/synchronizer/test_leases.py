"""Work that is granted to a Learner which had stopped, or had been given up."""

from pathlib import Path

import pytest

from diloco_trainer.wire.errors import Reason, Refused
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.scripted_learner import ScriptedLearner
from fakes.sync_jobs import Bench, decoupled, run_config

STEP_TOKENS = 16


async def joined(bench: Bench, index: int, *, want: int) -> ScriptedLearner:
    learner = bench.learner(index)
    await learner.join()
    await learner.pull_everything()
    await learner.lease(want=want)
    return learner


async def given_up(bench: Bench, learner: ScriptedLearner, stays: ScriptedLearner) -> None:
    """`learner` is silent until it is gone."""
    for _ in range(130):
        bench.advance(5)
        await stays.heartbeat()
    with pytest.raises(Refused) as caught:
        await learner.heartbeat()
    assert caught.value.reason == Reason.NOT_ADMITTED


async def test_a_drained_learner_that_is_granted_the_last_work_keeps_the_job_open(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled(), budget_tokens=4 * STEP_TOKENS), tmp_path / "state")
    first = await joined(bench, 0, want=2)
    second = await joined(bench, 1, want=2)
    while (await first.lease()).ranges or first.clock < STEP_TOKENS * 3:
        first.train(1)
    await first.heartbeat(drained=True)
    await second.wire.leave(pb.LeaveRequest(index=1, incarnation=1))
    granted = await first.lease()
    assert (len(granted.ranges), granted.exhausted) == (1, True), "it is granted what the other one left"
    assert (await bench.synchronizer.backend.progress()).phase == "Running", "there is work, and somebody does it"
    first.train(1)
    await first.heartbeat(drained=True)
    assert (await bench.synchronizer.backend.progress()).phase == "Closing"


async def test_the_step_under_way_at_a_rejoin_is_no_part_of_the_lease_that_follows(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled()), tmp_path / "state")
    stays = await joined(bench, 0, want=10)
    learner = await joined(bench, 1, want=10)
    learner.train(1)
    await learner.heartbeat()
    await given_up(bench, learner, stays)
    learner.train(1)  # the one under way when it is told to join again
    learner.parts.clear()
    await learner.join()
    await learner.pull_everything()
    for part in learner.parts:
        part.adopted_clock, part.adopted_step = learner.clock, learner.step
    learner.leased = learner.clock // 8  # nothing is left of the lease before
    granted = await learner.lease(want=10)
    bench = bench.crashed()
    learner.wire = bench.wire(1)
    learner.train(sum(part.stop - part.start for part in granted.ranges) // 2)
    learner.parts[1].adopted_clock = learner.clock
    assert (await learner.nothing(1, 1)).outcome == pb.RECEIVED
    assert (await learner.contribute(0, 1)).outcome in (pb.RECEIVED, pb.HELD)
    learner.train(1)
    learner.parts[1].adopted_clock = learner.clock
    with pytest.raises(Refused) as caught:
        await learner.nothing(1, 1)
    assert caught.value.reason == Reason.BEYOND_LEASE


async def test_the_clock_of_a_lease_request_is_booked(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled()), tmp_path / "state")
    learner = await joined(bench, 0, want=10)
    learner.train(2)
    await learner.lease(want=10)
    assert (await bench.synchronizer.backend.progress()).tokens.trained == 2 * STEP_TOKENS
