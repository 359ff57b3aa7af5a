"""From a run config and a state folder to a ready engine: with threads for the process, without for scripted time.

Builds version 0 from the Task and opens the folder; starts nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm.fragments import make_layout
from diloco_trainer.algorithm.work import PoolConfig, WorkPool, new_pool
from diloco_trainer.synchronizer.backend import EngineBackend
from diloco_trainer.synchronizer.clock import Clock
from diloco_trainer.synchronizer.commit import Committer, InlineCommitter, ThreadCommitter
from diloco_trainer.synchronizer.control import Control, new_control
from diloco_trainer.synchronizer.engine import Engine, Machinery
from diloco_trainer.synchronizer.housekeeping import Limits
from diloco_trainer.synchronizer.log import Log
from diloco_trainer.synchronizer.merge_exec import MergeContext
from diloco_trainer.synchronizer.records import JobRecord
from diloco_trainer.synchronizer.recovery import Opened, open_state
from diloco_trainer.synchronizer.runner import InlineRunner, InlineWorker, ThreadRunner, ThreadWorker
from diloco_trainer.synchronizer.state import FragmentState, first_state
from diloco_trainer.task.errors import DataError
from diloco_trainer.task.task import Task

EPOCH = 1
"""Of a job that was never restored from a store."""
Crash = Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class Synchronizer:
    """A Synchronizer without its doors."""

    engine: Engine
    backend: EngineBackend


def policy_digest(run: RunConfig) -> str:
    """Of everything in the run config that replay and leases depend on."""
    text = f"{run.policy.model_dump_json()}|{run.budget_tokens}|{run.replicas}|{run.train.model_dump_json()}"
    return sha256(text.encode()).hexdigest()


def threaded(
    run: RunConfig, task: Task, folder: Path, clock: Clock, on_crash: Crash, limits: Limits | None = None
) -> Synchronizer:
    """The Synchronizer of the process. Raises StateError, DataError, CodecUnavailable."""
    opened, context = open_job(run, task, folder, clock)
    runner = ThreadRunner(on_crash)

    def committer(synced: Callable[[int], None], failed: Crash) -> Committer:
        return ThreadCommitter(opened.log, synced, failed)

    machinery = Machinery(
        runner=runner,
        merge_worker=ThreadWorker("merge", runner.post),
        snapshot_worker=ThreadWorker("snapshot", runner.post),
        task_worker=ThreadWorker("task", runner.post),
        make_committer=committer,
    )
    engine = Engine(run, context, task, folder, opened, clock, machinery, on_crash, limits or Limits())
    return Synchronizer(engine, EngineBackend(engine, context))


def inline(
    run: RunConfig,
    task: Task,
    folder: Path,
    clock: Clock,
    limits: Limits | None = None,
    committer: Callable[[Log, Callable[[int], None]], Committer] = InlineCommitter,
) -> Synchronizer:
    """The same on the caller's thread, for scripted time: every call is over when it returns.

    With the usual committer it is durable then, too.
    """
    opened, context = open_job(run, task, folder, clock)
    runner = InlineRunner()
    worker = InlineWorker(runner.post)
    machinery = Machinery(runner, worker, worker, worker, lambda synced, _: committer(opened.log, synced))
    engine = Engine(run, context, task, folder, opened, clock, machinery, _raise, limits or Limits())
    return Synchronizer(engine, EngineBackend(engine, context))


def open_job(run: RunConfig, task: Task, folder: Path, clock: Clock) -> tuple[Opened, MergeContext]:
    """Build version 0, check codecs and data, open the state folder."""
    model = task.build_model()
    params = task.parameters(model)
    layout = make_layout(task.tensor_specs(model), run.policy.num_fragments, run.policy.fragmentation)
    context = MergeContext(run.policy, layout, EPOCH)
    context.up.self_test()
    context.down.self_test()
    pool = make_pool(run, task)

    def first_control() -> Control:
        return new_control(tuple(fragment.numel for fragment in layout.fragments), pool)

    def version_0() -> list[FragmentState]:
        return first_state(layout, params, EPOCH, run.policy.retained_versions)

    job = JobRecord(run.job_uid, layout.digest, policy_digest(run), EPOCH)
    return open_state(folder, job, context, first_control, version_0, clock.wall()), context


def make_pool(run: RunConfig, task: Task) -> WorkPool:
    """The work of a job that starts; raises DataError when its data are not enough for any."""
    config = PoolConfig(
        num_sequences=task.num_sequences,
        sequence_tokens=task.sequence_length,
        budget_tokens=run.budget_tokens,
        max_passes=run.policy.max_passes,
        synchronous=run.policy.synchronous,
        replicas=run.replicas,
        batch_sequences=run.train.batch.sequences,
    )
    try:
        return new_pool(config)
    except ValueError as error:
        raise DataError(f"train.data: {error}") from error


def _raise(error: BaseException) -> None:
    raise error
