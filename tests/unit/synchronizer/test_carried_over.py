"""What error feedback carries over from a long stretch, and the guard."""

from contextlib import aclosing
from pathlib import Path

import pytest
import torch

from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.scripted_learner import ScriptedLearner
from fakes.sync_jobs import Bench, decoupled, run_config

STEPS, NORM = 4, 0.1
LONG = 100


async def open_turn(learner: ScriptedLearner) -> int:
    """The turn a stream that has just been opened tells of."""
    async with aclosing(learner.wire.turns()) as notices:
        while not (notice := await anext(notices)).HasField("turn"):
            pass
    return notice.turn.number


async def answer(bench: Bench, learner: ScriptedLearner, steps: int, norm: float) -> pb.Settlement:
    """Train, answer the turn that comes, and adopt."""
    learner.train(steps)
    await learner.heartbeat()
    bench.advance(5.0)
    numel = learner.parts[0].anchor.numel()
    await learner.contribute(0, await open_turn(learner), torch.full((numel,), norm / numel**0.5))
    settled = await learner.resend(0)
    await learner.adopt(settled)
    return settled


@pytest.mark.parametrize("crash", [False, True], ids=["same process", "after a crash"])
async def test_a_short_stretch_after_a_long_one_may_carry_its_residual(tmp_path: Path, crash: bool) -> None:
    bench = Bench(run_config(decoupled({"num_fragments": 1}), budget_tokens=10_000_000), tmp_path / "state")
    learner = bench.learner(0)
    await learner.join()
    await learner.pull_everything()
    await learner.lease(want=100_000)
    for _ in range(10):
        assert (await answer(bench, learner, STEPS, NORM)).outcome == pb.MERGED
    assert (await answer(bench, learner, LONG * STEPS, LONG * NORM)).outcome == pb.MERGED
    if crash:
        bench = bench.crashed()
        learner.wire = bench.wire(0)
        await learner.listen()
    assert (await answer(bench, learner, 1, 0.6 * LONG * NORM)).outcome == pb.MERGED
    refused = await answer(bench, learner, 1, 0.6 * LONG * NORM + 11 * NORM)
    assert (refused.outcome, refused.reason, refused.discarded_by_guard) == (pb.REFUSED, "NormOutlier", True)
