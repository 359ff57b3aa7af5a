"""The Synchronizer's engine: one thread that owns all state, from whatever runs it (`runner`).

Puts the parts together and drives them: time (`tick`), records becoming durable, snapshots, the end, and stopping. It
answers nobody itself and decides nothing about rounds: requests go to `desk` and `counter`, decisions to `sync_round`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diloco_api.progress import Phase, Progress
from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm.events import DrainRequested, Tick
from diloco_trainer.algorithm.round_state import Stage
from diloco_trainer.algorithm.sync_round import next_deadline
from diloco_trainer.synchronizer.clock import Clock
from diloco_trainer.synchronizer.commit import Committer
from diloco_trainer.synchronizer.control import Control
from diloco_trainer.synchronizer.core import Core
from diloco_trainer.synchronizer.counter import Counter
from diloco_trainer.synchronizer.desk import Desk
from diloco_trainer.synchronizer.effects import Effects
from diloco_trainer.synchronizer.finale import Finale
from diloco_trainer.synchronizer.housekeeping import Limits, Snapshots
from diloco_trainer.synchronizer.measures import Measures
from diloco_trainer.synchronizer.merge_exec import MergeContext
from diloco_trainer.synchronizer.merging import Merger
from diloco_trainer.synchronizer.metrics import Pace
from diloco_trainer.synchronizer.records import ShareRecord, TotalsRecord
from diloco_trainer.synchronizer.recovery import Opened
from diloco_trainer.synchronizer.reply import Reply
from diloco_trainer.synchronizer.report import progress, shown_phase
from diloco_trainer.synchronizer.runner import Runner, Worker
from diloco_trainer.synchronizer.state import FragmentState
from diloco_trainer.task.task import Task

logger = logging.getLogger(__name__)
TICK_SECONDS = 1.0
"""Longest time between two ticks."""
REPORT_SECONDS = 1.0
"""Least time between two reports of progress in the same phase: one takes longer than a heartbeat."""
TOTALS_SECONDS = 5.0
"""Least time between two totals records."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """What runs the engine: threads in the process, nothing under scripted time."""

    runner: Runner
    merge_worker: Worker
    snapshot_worker: Worker
    task_worker: Worker
    make_committer: Callable[[Callable[[int], None], Callable[[BaseException], None]], Committer]
    """Of the opened log; the callbacks say how far it is durable, and that it cannot be."""


class Engine:
    """All methods but the constructor, `start` and `post` run on the engine's thread."""

    def __init__(
        self,
        run: RunConfig,
        context: MergeContext,
        task: Task,
        folder: Path,
        opened: Opened,
        clock: Clock,
        machinery: Machinery,
        on_crash: Callable[[BaseException], None],
        limits: Limits,
    ) -> None:
        """`on_crash` hears of an error that nobody can go on from; it may be called on any thread."""
        self._machinery = machinery
        self._opened = opened
        self._on_crash = on_crash
        self.measures = Measures(run.job_name, run.job_namespace)
        core = Core(run, context, opened.journal, opened.fragments, clock, self.measures)
        self._core = core
        self._merger = Merger(core, machinery.merge_worker, on_crash, opened.replayed_seconds)
        self._snapshots = Snapshots(folder, opened.log, core, self._merger, machinery.snapshot_worker, limits, on_crash)
        self._finale = Finale(folder, core, task, machinery.task_worker, on_crash)
        effects = Effects(core, self._merger, lambda: self._finale.end(self._snapshots.begin))
        core.bind(effects.execute)
        self.desk = Desk(core)
        self.counter = Counter(core, self.desk, self._merger, effects)
        self._committer = machinery.make_committer(self._synced, on_crash)
        self._totals_at = core.now()
        self._stopped: Reply[None] | None = None
        self._stop_begun = False
        self._reported_at = core.now()
        self.latest: Progress = self.progress()
        """Progress as of a second ago at most; read by any thread."""

    @property
    def fragments(self) -> list[FragmentState]:
        """The outer parameters; to be read only."""
        return self._core.fragments

    @property
    def control(self) -> Control:
        """All durable state but the tensors; to be read only."""
        return self._core.control

    def start(self) -> None:
        """Begin to run."""
        self.post(self._begin)
        self._machinery.runner.serve(self)

    def post(self, command: Callable[[], None]) -> None:
        """Run `command` on the engine's thread; callable from any thread."""
        self._machinery.runner.post(command)

    def after_batch(self) -> None:
        """Commands have been executed: make what they recorded durable."""
        if self._opened.journal.has_work():
            self._committer.wake()

    def tick(self) -> float:
        """Let time pass; returns the seconds after which to be called again at the latest."""
        core = self._core
        now = core.now()
        if self._stopped is not None:
            self._go_on_stopping()
            return TICK_SECONDS
        core.feed(Tick())
        self._share_units()
        if now - self._totals_at >= TOTALS_SECONDS:
            self._totals_at = now
            self._save_totals()
            core.journal.commit_index()
            self._opened.lock.check()
        self._snapshots.consider()
        self._report(now)
        deadline = next_deadline(core.rounds, now)
        return TICK_SECONDS if deadline is None else min(TICK_SECONDS, deadline)

    def progress(self) -> Progress:
        return progress(self._core, self._finale)

    def pace(self) -> Pace:
        """For the metrics; on any thread."""
        return Pace(self._core.uptime.deadline_seconds, self._core.control.last_merge_wall)

    def transferred(self, direction: str, index: int, incarnation: int, seconds: float) -> None:
        """A fragment went from or to an incarnation; on any thread."""
        known = self._core.control.enrolled.get((index, incarnation))
        if known is not None:
            self.measures.transferred(known.site, direction, seconds)

    def drain(self, reply: Reply[None]) -> None:
        """Stop the job after one closing round of every fragment."""
        self._core.feed(DrainRequested())
        self._core.journal.when_durable(lambda: reply.ok(None))

    def stop(self, reply: Reply[None]) -> None:
        """Finish running merges, take a snapshot, answer; nothing new is begun. The caller then calls `close`."""
        logger.info("stopping: %s", shown_phase(self._core, self._finale))
        self._stopped = reply
        self._core.notices.end_all()
        self._save_totals()
        self._go_on_stopping()

    def close(self) -> None:
        """After `stop` has answered, from another thread: end the threads, close the log, give the folder back."""
        self._machinery.runner.close()
        for worker in (self._machinery.merge_worker, self._machinery.snapshot_worker, self._machinery.task_worker):
            worker.close()
        self._committer.close()
        self._opened.journal.close_index()
        self._opened.lock.close()

    def _begin(self) -> None:
        core = self._core
        core.pool_changed()
        if core.control.loss_initial is None:
            self._finale.evaluate_first()
        if core.rounds.stage == Stage.FINISHED:
            if core.control.loss_final is None:
                self._finale.end(self._snapshots.begin)
            else:
                self._finale.over = True
        logger.info("serving: %s, versions %s", core.phase(), [state.version for state in core.fragments])

    def _synced(self, lsn: int) -> None:
        """The log is durable up to `lsn` (called on the thread that flushes)."""
        self.post(lambda: self._opened.journal.durable(lsn))

    def _report(self, now: float) -> None:
        if now - self._reported_at >= REPORT_SECONDS or self.latest.phase != shown_phase(self._core, self._finale):
            self._reported_at = now
            self.latest = self.progress()

    def _save_totals(self) -> None:
        core = self._core
        learners = core.roster.take_unsaved()
        if learners or core.phase() in (Phase.RUNNING, Phase.CLOSING, Phase.DRAINING):
            core.journal.record(TotalsRecord(core.job_totals(), learners))

    def _share_units(self) -> None:
        """Fixed pool: when all live Learners are done and only absent indices have units left, share those."""
        core = self._core
        pool, live = core.control.pool, core.rounds.live()
        if not core.run.policy.synchronous or core.rounds.stage != Stage.RUNNING or core.rounds.draining:
            return
        if not live or not all(member.drained for member in live) or not pool.has_work:
            return
        present = {member.index for member in core.rounds.members.values()}
        indices = tuple(member.index for member in live)
        if any(pool.has_work_for(index) for index in present):
            return
        for index in range(core.run.replicas):
            if index not in present and pool.has_work_for(index):
                logger.warning("learner %d did not come back: its work is shared among learners %s", index, indices)
                core.journal.record(ShareRecord(index, indices))
        core.pool_changed()

    def _go_on_stopping(self) -> None:
        """Answer `stop` as soon as nothing is under way and the snapshot is taken."""
        if self._stop_begun or not self._merger.idle:
            return
        self._stop_begun = True
        reply = self._stopped
        assert reply is not None
        self._snapshots.begin(lambda: self._core.journal.when_durable(lambda: reply.ok(None)))
