"""A real run on this machine loses a Learner to SIGKILL: the others do not notice, a replacement joins by pulling."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from builders import job
from diloco_api.names import FILE_TAPE, Role
from diloco_api.progress import LearnerProgress, LearnerState, Progress
from diloco_api.states import JobPhase
from diloco_api.timeouts import Timeouts
from diloco_operator.local import LocalRun
from reference.hand import text_file

FAST = Timeouts(heartbeat_seconds=0.3)
STEPS = 700
SEQUENCE = 64
VICTIM = 1


def small_job(folder: Path):
    return job(
        {
            "train.data.uri": str(text_file(folder, 900)),
            "train.data.sequenceLength": SEQUENCE,
            "train.model": {"layers": 2, "hidden": 32, "heads": 2},
            "train.batch.sequences": 8,
            "algorithm.syncEvery": 12,
            "algorithm.fragments": 6,
            "learners.replicas": 3,
            "budget.innerSteps": STEPS,
        },
        preset="DecoupledDiLoCo",
    )


async def kill_when_all_have_merged(run: LocalRun) -> tuple[Progress, Progress]:
    """Kills the victim in mid-run; returns what was known before that, and when its replacement trains."""
    async with asyncio.timeout(90):
        while not (progress := run.observed and run.observed.progress) or not ready(progress):
            await asyncio.sleep(0.05)
    (pid,) = run.pids(Role.LEARNER, VICTIM)
    os.kill(pid, signal.SIGKILL)
    before = progress
    async with asyncio.timeout(90):
        while not (progress := run.observed and run.observed.progress) or not replaced(progress):
            await asyncio.sleep(0.05)
    return before, progress


def ready(progress: Progress) -> bool:
    rows = [row for row in progress.learners if row.step >= 40]
    return len(rows) == 3 and progress.outer_rounds >= 2


def replaced(progress: Progress) -> bool:
    return any((row.index, row.incarnation) == (VICTIM, 2) and row.step > 0 for row in progress.learners)


def incarnation(progress: Progress, index: int, number: int) -> LearnerProgress:
    (row,) = [row for row in progress.learners if (row.index, row.incarnation) == (index, number)]
    return row


def spent_in(state: LearnerState, learner: LearnerProgress) -> float:
    return learner.state_seconds.get(state, 0.0)


def passed(before: Progress, after: Progress, state: LearnerState) -> float:
    """Seconds the survivors spent in a state from the loss until the replacement trained."""
    return sum(
        spent_in(state, incarnation(after, index, 1)) - spent_in(state, incarnation(before, index, 1))
        for index in (0, 2)
    )


def steps_on_tape(folder: Path, row: LearnerProgress) -> list[int]:
    (path,) = folder.glob(f"pods/*-{row.index}-{row.incarnation}/*/{FILE_TAPE}")
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    sequences = sum(stop - start for event in steps for _, start, stop in event["ranges"])
    assert row.token_clock == sequences * SEQUENCE
    (joined,) = [event for event in events if event["kind"] == "join"]
    return [event["step"] - joined["step"] for event in steps]


def what_was_lost(folder: Path) -> list[str]:
    """Lines of the Synchronizer's log."""
    lines = [line for path in folder.glob("logs/*synchronizer*.log") for line in path.read_text().splitlines()]
    return [line for line in lines if "refused" in line or "gone" in line]


@pytest.mark.timeout(240)
async def test_survivors_of_a_killed_learner_wait_for_nothing_and_lose_no_step(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    run = LocalRun.open_folder(small_job(tmp_path), folder, FAST)
    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        task = group.create_task(run.run())
        steps = group.create_task(kill_when_all_have_merged(run))
    outcome, (before, after) = task.result(), steps.result()
    progress = outcome.snapshot.progress
    assert (outcome.phase, outcome.reason) == (JobPhase.COMPLETE, "StepBudgetReached")
    assert progress is not None

    assert sorted((row.index, row.incarnation) for row in progress.learners) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    survivors = [incarnation(progress, index, 1) for index in (0, 2)]
    for survivor in survivors:
        assert spent_in(LearnerState.SYNC_WAIT, survivor) == 0.0
        assert survivor.step > incarnation(before, survivor.index, 1).step + 100, "it trained on"
        assert steps_on_tape(folder, survivor) == list(range(1, survivor.step + 1)), "no step is lost or done twice"
    waited = sum(passed(before, after, state) for state in (LearnerState.SYNC_WAIT, LearnerState.DATA_WAIT))
    assert waited < 0.01 * passed(before, after, LearnerState.TRAINING) + 0.2, "nor for the one that was lost"
    assert set(progress.tokens.discarded) <= {"Fenced"}, (progress.tokens.discarded, what_was_lost(folder))

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
