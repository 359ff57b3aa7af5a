"""The training thread: one inner step after another, and at each boundary what has arrived and what is due.

It alone touches the model. Under a synchronous policy a boundary stages what the step schedule says and waits tau
steps later for the settlement (`sync_wait`), unless the Synchronizer is unheard; under a Decoupled one it never waits
for a round, only for work. How contributions travel is the exchange thread's business; what a stage or an adoption
does to the model is `core`'s.
"""

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from diloco_api.progress import LearnerState
from diloco_api.run_config import RunConfig
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.boundary import Boundary
from diloco_trainer.learner.core import Adoption, LearnerCore
from diloco_trainer.learner.messages import (
    Answered,
    Depart,
    Drained,
    Ended,
    FirstStep,
    Granted,
    HeldBack,
    Installed,
    LeaseWanted,
    PhaseIs,
    Restored,
    ToExchange,
    ToTraining,
    TurnSeen,
    Voided,
    Woken,
)
from diloco_trainer.learner.rate import Rate
from diloco_trainer.learner.tape import Tape
from diloco_trainer.learner.work import Range, Work
from diloco_trainer.task.errors import DataError
from diloco_trainer.task.task import Task
from diloco_trainer.wire.gen import synchronizer_pb2 as pb

_LOOK_AGAIN_SECONDS = 1.0
_STOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Link:
    """The exchange thread as the training thread sees it."""

    inbox: "queue.SimpleQueue[ToTraining]"
    post: Callable[[ToExchange], None]
    unheard_seconds: Callable[[], float]


class TrainingLoop:
    """Runs until the job is over, the process is asked to stop, or the exchange thread has ended."""

    def __init__(
        self,
        task: Task,
        core: LearnerCore,
        run: RunConfig,
        link: Link,
        *,
        account: Account,
        tape: Tape,
        clock: Callable[[], float],
    ) -> None:
        self._task = task
        self._core = core
        self._run = run
        self._link = link
        self._account = account
        self._tape = tape
        self._clock = clock
        self._rate = Rate(run)
        self._boundary = Boundary(core, run, link.post, self._rate, account=account, tape=tape)
        self._work = Work()
        self._phase: int = pb.PHASE_UNSPECIFIED
        self._exhausted = False
        self._drained = False
        self._num_grants = 0
        self._restored = False
        self._ended: Ended | None = None
        self._stop_requested = False

    def stop(self) -> None:
        """Ask for an orderly end at the next boundary. Safe in a signal handler."""
        self._stop_requested = True
        self._link.inbox.put(Woken())

    def run(self) -> Ended:
        """Train until there is a reason to end; returns it."""
        while (ranges := self._next_ranges()) is not None:
            self._step(ranges)
            self._look()
            if not self._leaving():
                self._boundary.after_step(self._await_settlement)
        if self._ended is None:
            self._depart()
        assert self._ended is not None
        return self._ended

    # --- one step -------------------------------------------------------------------------------------------------

    def _step(self, ranges: list[Range]) -> None:
        began_at = self._clock()
        self._account.enter(LearnerState.TRAINING)
        batch = torch.cat([self._task.batch(part.pass_index, range(part.start, part.stop)) for part in ranges])
        lr = self._rate.next(self._core.job_step, self._account.step_seconds)
        loss = self._core.train_step(batch, lr)
        is_first = self._account.step_seconds is None
        self._account.stepped(
            step=self._core.steps,
            job_step=self._core.job_step,
            token_clock=self._core.token_clock,
            seconds=self._clock() - began_at,
            loss=loss,
            rate=lr,
            warmup_left=self._rate.warmup_left,
        )
        listed = [[part.pass_index, part.start, part.stop] for part in ranges]
        self._tape.write("step", step=self._core.job_step, lr=lr, ranges=listed, loss=loss)
        if is_first:
            self._link.post(FirstStep())

    # --- work -----------------------------------------------------------------------------------------------------

    def _next_ranges(self) -> list[Range] | None:
        """The next batch's sequences, waited for where necessary; None when training is over."""
        batch = self._run.train.batch.sequences
        while True:
            self._look()
            if self._leaving():
                return None
            may_train = self._restored and self._phase not in (pb.WAITING, pb.DRAINING)
            if may_train and (self._work.num_sequences >= batch or (self._exhausted and self._work.num_sequences)):
                self._say_drained(False)
                ranges = self._work.take(batch)
                self._account.took(sum(part.num_sequences for part in ranges))
                self._ask_for_more()
                return ranges
            self._idle()

    def _ask_for_more(self) -> None:
        """Before work runs out: some seconds' worth of steps must be left, or half of what the last grant made it.

        The pool gives out less and less; asking after every step would only cost a durable record each.
        """
        step_seconds = self._account.step_seconds or _STOCK_SECONDS
        batch = self._run.train.batch.sequences
        stock = min(batch * max(1.0, _STOCK_SECONDS / step_seconds), max(2 * batch, self._work.full / 2))
        if not self._exhausted and self._work.num_sequences < stock:
            self._link.post(LeaseWanted())

    def _idle(self) -> None:
        """Nothing to train on: adopt what arrives, answer what is asked, wait for a message."""
        drained = self._restored and (self._phase == pb.DRAINING or (self._exhausted and not self._work.num_sequences))
        self._say_drained(drained)
        if self._restored:
            self._boundary.while_idle(drained=drained)
        if drained:
            state = LearnerState.DRAIN
        elif not self._restored:
            state = LearnerState.INIT if self._phase in (pb.PHASE_UNSPECIFIED, pb.WAITING) else LearnerState.RESTORE
        elif self._is_unheard():
            state = LearnerState.SYNC_WAIT
        else:
            state = LearnerState.DATA_WAIT
        self._account.enter(state)
        self._look(wait_seconds=_LOOK_AGAIN_SECONDS)

    def _say_drained(self, drained: bool) -> None:
        if drained != self._drained:
            self._drained = drained
            self._link.post(Drained(drained, self._num_grants))

    # --- waiting for a round --------------------------------------------------------------------------------------

    def _await_settlement(self, is_settled: Callable[[], bool]) -> bool:
        """Block until a contribution is settled or held; False to train on because nobody is heard or it is over."""
        while not is_settled():
            if self._leaving() or not self._restored or self._is_unheard():
                return False
            self._account.enter(LearnerState.SYNC_WAIT)
            self._look(wait_seconds=_LOOK_AGAIN_SECONDS)
        return True

    def _is_unheard(self) -> bool:
        return self._link.unheard_seconds() > self._run.timeouts.unheard_synchronizer_seconds

    # --- messages -------------------------------------------------------------------------------------------------

    def _look(self, wait_seconds: float | None = None) -> None:
        """Take in all messages there are; with `wait_seconds`, wait that long for a first one."""
        for message in self._messages(wait_seconds):
            match message:
                case Adoption() | TurnSeen() | Answered() | HeldBack():
                    self._boundary.receive(message)
                case Granted():
                    self._take_grant(message)
                case PhaseIs():
                    self._phase = message.phase
                case Restored():
                    self._restore(message)
                case Voided():
                    self._restored = False
                    self._work.clear()
                    self._boundary.reset()
                case Ended():
                    self._ended = message
                case Woken():
                    pass

    def _messages(self, wait_seconds: float | None) -> Iterator[ToTraining]:
        try:
            if wait_seconds is not None:
                yield self._link.inbox.get(timeout=wait_seconds)
            while True:
                yield self._link.inbox.get_nowait()
        except queue.Empty:
            return

    def _take_grant(self, grant: Granted) -> None:
        for part in grant.ranges:
            if part.stop > self._task.num_sequences:
                raise DataError(
                    f"data.uri: the job's data have sequences up to {part.stop}, here there are "
                    f"{self._task.num_sequences}: the text differs from the Synchronizer's"
                )
        self._work.add(grant.ranges)
        self._exhausted = grant.exhausted
        if grant.ranges:
            self._num_grants += 1
            self._say_drained(False)

    def _restore(self, message: Restored) -> None:
        is_first = self._core.generation == 0
        self._core.install(message.versions, message.anchors, message.job_step)
        self._boundary.reset()
        if is_first:
            self._rate.joined(message.rejoin)
        self._rate.adopted(message.stamp, message.tokens_per_second)
        self._restored = True
        self._exhausted = False
        self._drained = False
        self._num_grants = 0
        self._link.post(Installed(self._core.generation))

    # --- the end --------------------------------------------------------------------------------------------------

    def _leaving(self) -> bool:
        return self._ended is not None or self._stop_requested or self._phase in (pb.STOPPED, pb.COMPLETE)

    def _depart(self) -> None:
        """Hand over what was trained since the last adoptions, where that is still wanted, and leave."""
        over = self._phase in (pb.STOPPED, pb.COMPLETE)
        if self._restored and not over:
            self._boundary.hand_over()
        seconds = self._run.timeouts.grace_period_seconds / 2
        reason = "JobOver" if over else "Terminated"
        self._link.post(Depart(reason=reason, within_seconds=seconds))
        give_up_at = self._clock() + seconds + _LOOK_AGAIN_SECONDS
        while self._ended is None:
            self._look(wait_seconds=_LOOK_AGAIN_SECONDS)
            if self._clock() > give_up_at and self._ended is None:
                self._ended = Ended(0, "")
