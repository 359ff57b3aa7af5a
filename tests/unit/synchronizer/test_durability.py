"""Nothing is told before its record is on disk, and everything else goes on meanwhile."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from diloco_trainer.synchronizer.log import Log
from diloco_trainer.wire.errors import Refused
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.scripted_learner import ScriptedLearner
from fakes.sync_jobs import Bench, run_config, synchronous


class HeldCommitter:
    """Flushes only while it is not held."""

    def __init__(self, log: Log, on_durable: Callable[[int], None]) -> None:
        self._log = log
        self._on_durable = on_durable
        self.held = False

    def wake(self) -> None:
        if not self.held:
            self._on_durable(self._log.flush())

    def release(self) -> None:
        self.held = False
        self.wake()

    def close(self) -> None:
        self._log.close()


class HeldBench(Bench):
    """A bench whose disk can be stopped."""

    committer: HeldCommitter

    def __init__(self, folder: Path) -> None:
        def make(log: Log, on_durable: Callable[[int], None]) -> HeldCommitter:
            self.committer = HeldCommitter(log, on_durable)
            return self.committer

        super().__init__(run_config(synchronous()), folder, committer=make)


async def started(bench: Bench) -> list[ScriptedLearner]:
    learners = [bench.learner(index) for index in range(2)]
    for learner in learners:
        await learner.join()
    for learner in learners:
        await learner.pull_everything()
        await learner.lease(want=400)
        learner.train(2)
    return learners


async def anchor_version(learner: ScriptedLearner) -> int:
    """Version of the anchor of fragment 0, pulled raw."""
    request = pb.PullRequest(index=learner.index, incarnation=learner.incarnation, fragment=0, raw=True)
    (item,) = [item async for item in learner.wire.pull(request)]
    return item.version


async def settled(task: "asyncio.Task[object]") -> bool:
    """Whether a task is over after everybody had their turn."""
    for _ in range(10):
        await asyncio.sleep(0)
    return task.done()


async def test_a_version_is_invisible_until_its_record_is_on_disk(tmp_path: Path) -> None:
    bench = HeldBench(tmp_path / "state")
    first, second = await started(bench)
    bench.committer.held = True
    await first.contribute(0, 1)
    await second.contribute(0, 1)
    resent = asyncio.ensure_future(first.resend(0))
    raw = asyncio.ensure_future(anchor_version(first))
    assert not await settled(resent)
    assert not await settled(raw)
    progress = await bench.synchronizer.backend.progress()
    assert (progress.outer_steps, progress.digests[0].version) == (0, 0)
    request = pb.PullRequest(index=0, incarnation=1, fragment=0, have_version=0, want_version=1)
    with pytest.raises(Refused, match="has version 0"):
        _ = [item async for item in first.wire.pull(request)]
    assert (await second.heartbeat()).phase == pb.RUNNING
    bench.committer.release()
    assert (await resent).outcome == pb.MERGED
    assert await raw == 1
    assert (await bench.synchronizer.backend.progress()).outer_steps == 1


async def test_the_other_fragment_merges_while_one_is_being_synced(tmp_path: Path) -> None:
    bench = HeldBench(tmp_path / "state")
    learners = await started(bench)
    bench.committer.held = True
    for fragment in (0, 1):
        for learner in learners:
            assert (await learner.contribute(fragment, 1)).outcome == pb.RECEIVED
    bench.committer.release()
    assert (await bench.synchronizer.backend.progress()).outer_rounds == 1


@pytest.mark.parametrize("what", ["join", "lease", "refusal", "leave"])
async def test_a_reply_waits_for_its_record(tmp_path: Path, what: str) -> None:
    bench = HeldBench(tmp_path / "state")
    first, _ = await started(bench)
    bench.committer.held = True
    payload = b"\xff" * bench.synchronizer.backend.expectation(0).size_bytes
    calls = {
        "join": lambda: bench.learner(0, incarnation=2).join(),
        "lease": lambda: first.lease(want=1000),
        "refusal": lambda: first.send(first.header(0, 1, 1, payload), payload),
        "leave": lambda: first.wire.leave(pb.LeaveRequest(index=0, incarnation=1)),
    }
    task = asyncio.ensure_future(calls[what]())
    assert not await settled(task)
    bench.committer.release()
    await task


async def test_a_crash_before_the_sync_forgets_what_nobody_was_told(tmp_path: Path) -> None:
    bench = HeldBench(tmp_path / "state")
    first, second = await started(bench)
    bench.committer.held = True
    await first.contribute(0, 1)
    await second.contribute(0, 1)
    after = bench.crashed()
    assert (await after.synchronizer.backend.progress()).outer_steps == 0
    for learner in (first, second):
        learner.wire = after.wire(learner.index)
        await learner.resend(0)
    assert (await first.resend(0)).outcome == pb.MERGED
