"""A Synchronizer with all its threads that is killed again and again; as a program, it exits 0 when nothing was lost.

Each life is a forked child that opens the same folder and lets two scripted Learners drive synchronous rounds as fast
as they can; the parent kills it at a random instant. What a Learner contributes depends on its name and count alone, so
every version has one right digest whatever the kills. Learners report what they were told; it must be there afterwards.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from diloco_api.run_config import RunConfig
from diloco_api.tokens import make_token
from diloco_trainer.synchronizer.assembly import Synchronizer, inline, threaded
from diloco_trainer.synchronizer.clock import SystemClock
from diloco_trainer.synchronizer.housekeeping import Limits
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.memory import MemorySynchronizer
from fakes.clock import ManualClock
from fakes.scripted_learner import ScriptedLearner
from fakes.sync_jobs import KEY, UID, run_config, synchronous, toy_layout
from fakes.toy_task import ToyTask

LIMITS = Limits(least_log_bytes=20_000)  # small, so that kills fall into snapshots too
STEPS = 2
LONGEST_LIFE_SECONDS = 1.5


def job() -> RunConfig:
    return run_config(
        synchronous({"encode_up": "int4", "encode_down": "int8", "guard": None}), budget_tokens=10_000_000
    )


def learners_of(run: RunConfig, synchronizer: Synchronizer) -> list[ScriptedLearner]:
    layout = toy_layout(run)
    wires = [
        MemorySynchronizer(synchronizer.backend, key=KEY, job_uid=UID, token=make_token(KEY, UID, index, 1))
        for index in range(2)
    ]
    return [ScriptedLearner(run, layout, wire, index) for index, wire in enumerate(wires)]


async def resume(learner: ScriptedLearner, versions: list[int], generation: int) -> None:
    """Put a Learner where one is that has lived through all merges so far: its clocks follow from the versions."""
    await learner.pull_everything()
    learner.train(STEPS * sum(versions))
    for fragment, version in enumerate(versions):
        part = learner.parts[fragment]
        part.sequence = version
        rounds = version * len(versions) - (len(versions) - 1 - fragment) if version else 0
        part.adopted_step = STEPS * rounds
        part.adopted_clock = part.adopted_step * learner.batch_tokens
    learner.request_number = generation * 1_000_000
    learner.leased = learner.clock // learner.run.train.data.sequence_length


async def rounds(learners: list[ScriptedLearner], report: int, count: int | None) -> None:
    """Round after round over the fragments in turn, from wherever the versions are."""
    num_fragments = len(learners[0].parts)
    while count is None or count > 0:
        count = None if count is None else count - 1
        fragment = sum(part.version for part in learners[0].parts) % num_fragments
        for learner in learners:
            learner.train(STEPS)
            if learner.leased * 8 < learner.clock + 1000:
                await learner.lease(want=500)
            await learner.contribute(fragment, learner.parts[fragment].version + 1)
        for learner in learners:
            while (settled := await learner.resend(fragment)).outcome == pb.RECEIVED:
                await asyncio.sleep(0)
            await learner.adopt(settled)
        os.write(report, f"{fragment} {learners[0].parts[fragment].version}\n".encode())


def life(folder: Path, report: int, generation: int) -> None:
    """One child, until it is killed."""
    run = job()
    synchronizer = threaded(run, ToyTask(), folder, SystemClock(), lambda error: os._exit(3), LIMITS)
    synchronizer.engine.start()

    async def live() -> None:
        learners = learners_of(run, synchronizer)
        versions = [state.version for state in synchronizer.engine.fragments]
        for learner in learners:
            await learner.join()
        for learner in learners:
            await resume(learner, versions, generation)
        await rounds(learners, report, None)

    asyncio.run(live())


def told(text: str) -> dict[int, int]:
    """Newest version of each fragment that Learners were told of."""
    newest: dict[int, int] = {}
    for line in text.splitlines():
        fragment, version = map(int, line.split())
        newest[fragment] = max(version, newest.get(fragment, 0))
    return newest


def kill_lives(report: Path, seed: int, kills: int, life: Callable[[int, int], None]) -> None:
    """Fork so many children, one after another, and kill each at a random instant.

    `life` is told its number from 1 and a descriptor to report to, and never ends by itself.
    """
    rng = random.Random(seed)
    descriptor = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(1, kills + 1):
        child = os.fork()
        if child == 0:
            try:
                life(number, descriptor)
            finally:
                os._exit(4)  # a life does not end by itself
        time.sleep(rng.uniform(0.1, LONGEST_LIFE_SECONDS))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"life {number} ended by itself: {status}"
    os.close(descriptor)


def main(folder: Path, seed: int, kills: int) -> None:
    torch.set_num_threads(1)
    reports = folder / "reports"
    kill_lives(reports, seed, kills, lambda number, report: life(folder / "state", report, number))
    survived = inline(job(), ToyTask(), folder / "state", ManualClock())
    versions = [state.version for state in survived.engine.fragments]
    for fragment, version in told(reports.read_text()).items():
        assert versions[fragment] >= version, f"fragment {fragment}: told of {version}, found {versions[fragment]}"
    check_against_undisturbed(folder, survived, versions)
    print("versions", versions)


def check_against_undisturbed(folder: Path, survived: Synchronizer, versions: list[int]) -> None:
    """The same number of merges without a kill gives the same bits and the same books."""
    run = job()
    calm = inline(run, ToyTask(), folder / "calm", ManualClock())
    calm.engine.start()

    async def live() -> None:
        learners = learners_of(run, calm)
        for learner in learners:
            await learner.join()
        for learner in learners:
            await resume(learner, [0, 0], 0)
        null = os.open(os.devnull, os.O_WRONLY)
        await rounds(learners, null, sum(versions))

    asyncio.run(live())
    for one, other in zip(survived.engine.fragments, calm.engine.fragments, strict=True):
        assert one.newest.number == other.newest.number
        for name in ("theta", "momentum", "published"):
            assert torch.equal(getattr(one, name), getattr(other, name)), f"fragment {one.index}: {name} differs"
        assert one.norms == other.norms
    found, wanted = survived.engine.progress().tokens, calm.engine.progress().tokens
    assert (found.merged, found.overlap, found.discarded) == (wanted.merged, wanted.overlap, wanted.discarded)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
