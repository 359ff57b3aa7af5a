"""Learners that go while a body of theirs is still waiting, and a crash before it is merged."""

from pathlib import Path

import pytest

from diloco_trainer.wire.errors import Fenced, Refused
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.sync_jobs import Bench, decoupled, run_config, synchronous


async def waiting(bench: Bench) -> list:
    """Two Learners; the first has delivered a body, the second not yet."""
    learners = [bench.learner(index) for index in range(2)]
    for learner in learners:
        await learner.join()
    for learner in learners:
        await learner.pull_everything()
        await learner.lease(want=400)
    learners[0].train(2)
    assert (await learners[0].contribute(0, 1)).outcome == pb.RECEIVED
    return learners


async def test_a_fenced_incarnation_stays_fenced_over_a_restart_although_its_body_was_waiting(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    await waiting(bench)
    await bench.learner(0, 2).join()
    again = bench.crashed()
    with pytest.raises(Fenced):
        await again.learner(0, 1).heartbeat()
    with pytest.raises(Fenced):
        await again.learner(0, 1).lease(want=400)
    assert (await again.learner(0, 2).heartbeat()).phase == pb.RUNNING
    rows = {(row.incarnation, row.gone) for row in (await progress(again)).learners if row.index == 0}
    assert rows == {(1, True), (2, False)}


async def test_a_learner_that_left_is_gone_after_a_restart_and_its_work_is_leased_again(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, _ = await waiting(bench)
    await first.wire.leave(pb.LeaveRequest(index=0, incarnation=1, reason="Terminated"))
    assert not [row for row in (await progress(bench)).learners if row.gone], "its body settles first"
    again = bench.crashed()
    again.advance(0.1)
    assert [(row.index, row.gone) for row in (await progress(again)).learners] == [(0, True), (1, False)]
    with pytest.raises(Refused, match="not admitted"):
        await again.learner(0, 1).heartbeat()
    replacement = again.learner(0, 2)
    await replacement.join()
    await replacement.pull_everything()
    assert (await replacement.lease(want=400)).ranges[0].start == 0, "from its frontier: nothing of it was merged"


async def test_a_token_clock_beyond_the_lease_does_not_push_the_schedule(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, _ = await waiting(bench)
    first.clock = 10**9
    await first.heartbeat()
    assert (await progress(bench)).tokens.trained < bench.run.budget_tokens


async def progress(bench: Bench):
    return await bench.synchronizer.backend.progress()


async def test_the_first_to_join_leaves_work_for_those_still_to_come(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled(), replicas=3, budget_tokens=8 * 600), tmp_path / "state")
    first = bench.learner(0)
    await first.join()
    granted = await first.lease(want=10**6)
    assert sum(item.stop - item.start for item in granted.ranges) == 600 // (2 * 3)
