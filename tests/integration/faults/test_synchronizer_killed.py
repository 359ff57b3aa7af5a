"""SIGKILL of the Synchronizer at random instants: Learners train on, and nothing that was promised is lost.

Learners and Synchronizer are real processes. After the run the reference replays the whole tape, across all restarts:
the digest of every version, the momentum and the ledger continue bit for bit, whenever the process died.
"""

import os
import random
import signal
import time

import pytest
import torch

from diloco_trainer.algorithm.fragments import make_layout
from diloco_trainer.algorithm.tokens import TokenLedger
from diloco_trainer.synchronizer.snapshot import load_newest
from diloco_trainer.task.task import make_task
from reference import decoupled
from reference.arithmetic import digest
from reference.hand import run_config
from reference.processes import Job
from reference.replay import replay
from reference.task_inner import TaskInner

KILLS = 3
STEPS = 1500  # each outage uses up half of the work left: with less, too little would remain to kill in
LAST_OUTAGE_SECONDS = 4.0  # on top of the start: long enough for stretches many times as long as usual
LEARNERS = ("learner-0-1", "learner-1-1")
CHANGES = {
    "algorithm.syncEvery": 12,
    "algorithm.fragments": 6,
    "train.data.sequenceLength": 64,
    "train.batch.sequences": 8,
    "train.model": {"layers": 2, "hidden": 16, "heads": 2},
}


class MortalJob(Job):
    def kill(self, life: int) -> None:
        """SIGKILL of the Synchronizer; its log is put aside, so that the next life's port is read from its own."""
        process = self.processes.pop("synchronizer")
        process.kill()
        assert process.wait() == -signal.SIGKILL
        (self.folder / "synchronizer.log").rename(self.folder / f"synchronizer-{life}.log")


def kill_at_random_instants(job: MortalJob, chance: random.Random) -> None:
    """Each life is ended at a random moment of its start-up, its replay or its service; the last one serves on."""
    for life in range(KILLS):
        merged = adoptions(job)
        job.until(lambda merged=merged: adoptions(job) > merged + chance.randrange(1, 12))
        time.sleep(chance.uniform(0.0, 0.05))
        job.kill(life)
        time.sleep(LAST_OUTAGE_SECONDS if life == KILLS - 1 else 0.0)
        job.start_synchronizer()


def adoptions(job: MortalJob) -> int:
    return sum(event["kind"] == "adoption" for name in LEARNERS for event in job.tape(name))


@pytest.mark.timeout(400)
def test_a_run_whose_synchronizer_is_killed_again_and_again_is_replayed_to_the_same_digests(tmp_path) -> None:
    chance = random.Random(int(os.environ.get("DILOCO_TEST_SEED", "20")))
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=2, steps=STEPS, changes=CHANGES)
    with MortalJob(run, tmp_path) as job:
        job.start_synchronizer()
        for index in range(2):
            job.start_learner(index)
        kill_at_random_instants(job, chance)
        job.finish()  # every Learner ended with 0 by itself: none exited on the way

    task = make_task(run.train)
    policy = run.policy
    layout = make_layout(task.tensor_specs(task.build_model()), policy.num_fragments, policy.fragmentation)
    first = TaskInner(task, run.train, layout.fragments, ())
    rules = decoupled.Rules(
        lr=policy.outer_lr, mu=0.9, sync_delay=2, blend_alpha=0.0, up="int4", down="int8", error_feedback=True
    )
    synchronizer, _ = replay(
        [job.tape(name) for name in LEARNERS],
        [merge for merge, _, _ in job.merges()],
        lambda work: TaskInner(task, run.train, layout.fragments, work),
        rules,
        [first.read(f) for f in range(policy.num_fragments)],
    )
    (epoch,) = {event["epoch"] for name in LEARNERS for event in job.tape(name) if event["kind"] == "join"}
    versions = [(merge.fragment, merge.version) for merge, _, _ in job.merges()]
    assert len(versions) == len(set(versions)), "no version was made twice"
    for merge, branch, found in job.merges():
        made = synchronizer.versions[merge.fragment][merge.version]
        assert found == digest(epoch, merge.fragment, merge.version, made.published)
        assert branch == synchronizer.branches[merge.fragment, merge.version]
    loaded = load_newest(job.state, policy.retained_versions)
    for state in loaded.fragments:
        wanted = synchronizer.newest(state.index)
        for name in ("theta", "momentum", "published"):
            assert torch.equal(getattr(state, name), getattr(wanted, name)), (name, state.index)

    totals = TokenLedger.from_json(loaded.control["ledger"]).totals()
    assert totals.discarded == {}
    assert (totals.in_flight, totals.repeated) == (0, 0)
    steps = [event for name in LEARNERS for event in job.tape(name) if event["kind"] == "step"]
    trained = sum(stop - start for event in steps for _, start, stop in event["ranges"])
    assert trained == 2 * STEPS * 8, (
        "the budget was trained to the last sequence, none twice (last batches may be short)"
    )
    assert totals.trained == trained * 64
