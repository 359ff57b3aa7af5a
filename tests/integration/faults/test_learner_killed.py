"""A real run on this machine loses a Learner to SIGKILL: the others do not notice, a replacement joins by pulling."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from builders import job
from diloco_api.names import JobPhase, Role
from diloco_api.progress import LearnerProgress, LearnerState, Progress
from diloco_api.timeouts import Timeouts
from diloco_operator.local import LocalRun
from reference.hand import text_file

FAST = Timeouts(heartbeat_seconds=0.3)
STEPS = 700
VICTIM = 1


def small_job(folder: Path):
    return job(
        {
            "train.data.uri": str(text_file(folder, 900)),
            "train.data.sequenceLength": 64,
            "train.model": {"layers": 2, "hidden": 32, "heads": 2},
            "train.batch.sequences": 8,
            "algorithm.syncEvery": 12,
            "algorithm.fragments": 6,
            "learners.replicas": 3,
            "budget.innerSteps": STEPS,
        },
        preset="DecoupledDiLoCo",
    )


async def kill_when_all_have_merged(run: LocalRun) -> dict[int, int]:
    """Kills the victim in mid-run; returns each Learner's last known step before that."""
    async with asyncio.timeout(90):
        while not (progress := run.observed and run.observed.progress) or not ready(progress):
            await asyncio.sleep(0.05)
    (pid,) = run.pids(Role.LEARNER, VICTIM)
    os.kill(pid, signal.SIGKILL)
    return {row.index: row.step for row in progress.learners}


def ready(progress: Progress) -> bool:
    rows = [row for row in progress.learners if row.step >= 40]
    return len(rows) == 3 and progress.outer_rounds >= 2


def incarnation(progress: Progress, index: int, number: int) -> LearnerProgress:
    (row,) = [row for row in progress.learners if (row.index, row.incarnation) == (index, number)]
    return row


@pytest.mark.timeout(240)
async def test_survivors_of_a_killed_learner_wait_for_nothing_and_lose_no_step(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    run = LocalRun.open_folder(small_job(tmp_path), folder, FAST)
    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        task = group.create_task(run.run())
        steps = group.create_task(kill_when_all_have_merged(run))
    outcome, before = task.result(), steps.result()
    progress = outcome.snapshot.progress
    assert (outcome.phase, outcome.reason) == (JobPhase.COMPLETE, "StepBudgetReached")
    assert progress is not None

    assert sorted((row.index, row.incarnation) for row in progress.learners) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    for index in (0, 2):
        survivor = incarnation(progress, index, 1)
        assert survivor.state_seconds[LearnerState.SYNC_WAIT] == 0.0
        assert survivor.step > before[index] + 100, "it trained on"
    assert set(progress.tokens.discarded) <= {"Fenced"}, progress.tokens.discarded

    replacement = incarnation(progress, VICTIM, 2)
    assert replacement.step > 0
    assert replacement.bytes_down > 0, "it joined by pulling"
    (row,) = [row for row in outcome.snapshot.status.learner_statuses if row.index == VICTIM]
    assert (row.restarts, row.incarnation) == (1, 2)

    totals = progress.tokens
    booked = totals.merged + totals.overlap + sum(totals.discarded.values()) + totals.in_flight
    assert totals.trained == pytest.approx(booked, abs=1e-6 * totals.trained)
    assert totals.in_flight == pytest.approx(0.0, abs=1e-6)
    alive = sum(row.token_clock for row in progress.learners if (row.index, row.incarnation) != (VICTIM, 1))
    assert totals.trained == pytest.approx(alive + incarnation(progress, VICTIM, 1).token_clock)
