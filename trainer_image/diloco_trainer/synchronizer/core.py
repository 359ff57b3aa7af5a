"""What the parts of the engine share: the one copy of everything the engine thread owns, and the loop of decisions.

`feed` steps `sync_round` and executes its effects in order; what an effect causes is stepped before anything from
outside. Nothing in here answers requests or does tensor work.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from diloco_api.progress import Phase
from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm import sync_round
from diloco_trainer.algorithm.events import Effect, Event, GoneReason, PoolChanged
from diloco_trainer.algorithm.membership import depart
from diloco_trainer.algorithm.round_state import (
    Member,
    RoundState,
    Stage,
    admit,
    initial_state,
    published,
    round_config,
    start,
)
from diloco_trainer.algorithm.work import TOKEN_BUDGET_REACHED
from diloco_trainer.synchronizer.clock import Clock
from diloco_trainer.synchronizer.control import Control
from diloco_trainer.synchronizer.inbox import Inbox
from diloco_trainer.synchronizer.journal import Journal
from diloco_trainer.synchronizer.measures import Measures
from diloco_trainer.synchronizer.merge_exec import MergeContext
from diloco_trainer.synchronizer.notices import Notices
from diloco_trainer.synchronizer.records import JobTotals
from diloco_trainer.synchronizer.roster import Roster
from diloco_trainer.synchronizer.state import FragmentState
from diloco_trainer.synchronizer.uptime import UptimeClock
from diloco_trainer.wire.gen import synchronizer_pb2 as pb

Who = tuple[int, int]
Execute = Callable[[Effect], None]

PHASES: dict[Phase, pb.Phase.ValueType] = {
    Phase.WAITING: pb.WAITING,
    Phase.RUNNING: pb.RUNNING,
    Phase.CLOSING: pb.CLOSING,
    Phase.DRAINING: pb.DRAINING,
    Phase.STOPPED: pb.STOPPED,
    Phase.COMPLETE: pb.COMPLETE,
}


@dataclass(slots=True)
class Counters:
    """Totals of the job that no record but `TotalsRecord` carries; they continue those of earlier processes."""

    bytes_up: int = 0
    bytes_down: int = 0
    fenced_updates: int = 0
    turns_announced: int = 0
    turns_skipped: int = 0
    turns_void: int = 0


class Core:
    """Belongs to the engine thread."""

    def __init__(
        self,
        run: RunConfig,
        context: MergeContext,
        journal: Journal,
        fragments: list[FragmentState],
        clock: Clock,
        measures: Measures,
    ) -> None:
        self.run = run
        self.context = context
        self.journal = journal
        self.fragments = fragments
        self.clock = clock
        self.measures = measures
        self.inbox = Inbox()
        self.notices = Notices()
        self.began_at = self.now()
        self.sites: dict[Who, str] = {}
        """Sites of incarnations that are asking to be admitted."""
        batch_tokens = run.train.batch.sequences * run.train.data.sequence_length
        self.roster = Roster(batch_tokens)
        totals = journal.control.totals
        names = Counters.__dataclass_fields__
        self.counters = Counters(**{name: getattr(totals, name) for name in names})
        self.uptime = UptimeClock(self.began_at, totals.served_seconds, totals.uptime_seconds, run.timeouts)
        self.rounds = restored_rounds(run, journal.control, self.began_at)
        for item in journal.control.present():
            self.roster.restore(item.totals, self.began_at)
        self.told_phase = self.phase()
        """What Learners have been told: changes once its record is durable."""
        self._execute: Execute | None = None
        self._events: deque[Event] = deque()
        self._stepping = False

    @property
    def control(self) -> Control:
        return self.journal.control

    def now(self) -> float:
        return self.clock.monotonic()

    def bind(self, execute: Execute) -> None:
        """Who executes effects."""
        self._execute = execute

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Step an event and everything it causes; returns all effects, already executed.

        Called by an effect it only queues: the outer call steps it next.
        """
        self._events.append(event)
        if self._stepping:
            return ()
        assert self._execute is not None
        done: list[Effect] = []
        self._stepping = True
        try:
            while self._events:
                self.rounds, effects = sync_round.step(self.rounds, self._events.popleft(), self.now())
                for effect in effects:
                    self._execute(effect)
                done.extend(effects)
        finally:
            self._stepping = False
        self._tell_phase()
        return tuple(done)

    def pool_changed(self) -> None:
        """Tell the rounds whether there is work to lease."""
        pool = self.control.pool
        reason = pool.exhausted_reason
        self.feed(PoolChanged(pool.has_work, self.run.budget_reason if reason == TOKEN_BUDGET_REACHED else reason))

    def member(self, who: Who) -> Member | None:
        """The admitted incarnation that is not about to be given up."""
        found = self.rounds.members.get(who)
        return found if found is not None and found.going is None else None

    def phase(self) -> Phase:
        """What the rounds are doing now."""
        rounds = self.rounds
        if rounds.stage == Stage.FINISHED:
            finish = self.control.finish
            return Phase.COMPLETE if finish is not None and finish.reason is not None else Phase.STOPPED
        if rounds.draining:
            return Phase.DRAINING
        return {Stage.WAITING: Phase.WAITING, Stage.RUNNING: Phase.RUNNING}.get(rounds.stage, Phase.CLOSING)

    def tokens_per_second(self) -> float:
        """Of the whole job: the sum over the live Learners."""
        return self.roster.tokens_per_second(member.who for member in self.rounds.live())

    def job_totals(self) -> JobTotals:
        """The counters as a record holds them."""
        served, up = self.uptime.totals(self.now())
        counters = {name: getattr(self.counters, name) for name in Counters.__dataclass_fields__}
        return JobTotals(served_seconds=served, uptime_seconds=up, **counters)

    def _tell_phase(self) -> None:
        phase = self.phase()
        self.uptime.running(phase in (Phase.RUNNING, Phase.CLOSING, Phase.DRAINING), self.now())

        def tell() -> None:
            if self.told_phase != phase:
                self.told_phase = phase
                self.notices.tell_all(pb.Notice(phase=PHASES[phase]))

        if phase != self.told_phase:
            self.journal.when_durable(tell)


def restored_rounds(run: RunConfig, control: Control, now: float) -> RoundState:
    """Membership and rounds as the log left them; silence counts from `now` on."""
    rounds = initial_state(round_config(run), now)
    for item in control.present():
        admit(rounds, item.index, item.incarnation, now, restored=True)
    for index, incarnation in control.newest.items():
        rounds.newest[index] = incarnation
    for item in control.present():  # their bodies, which they were waiting for, went with the old process
        if item.incarnation < control.newest[item.index]:
            depart(rounds, item.who, GoneReason.FENCED)
        elif item.departing:
            depart(rounds, item.who, GoneReason.LEFT)
    if control.started:
        start(rounds)
    for fragment, version in enumerate(control.versions):
        if version:
            published(rounds, fragment, version, control.turns[fragment], (), now)
    if control.finish is not None:
        rounds.stage = Stage.FINISHED
    return rounds
