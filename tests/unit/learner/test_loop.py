"""The training thread against a scripted exchange thread: no sockets, no threads."""

import queue
from collections import deque
from pathlib import Path

import pytest

from diloco_api.exit_codes import ExitCode
from diloco_api.policy import SyncPolicy
from diloco_api.progress import LearnerState
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.loop import Link, TrainingLoop
from diloco_trainer.learner.messages import (
    Depart,
    Drained,
    Ended,
    FirstStep,
    Granted,
    Installed,
    LeaseWanted,
    PhaseIs,
    Restored,
    Staged,
    ToExchange,
    ToTraining,
    TurnSeen,
    Voided,
)
from diloco_trainer.learner.tape import Tape
from diloco_trainer.learner.work import Range
from diloco_trainer.task.errors import DataError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.clock import ManualClock
from fakes.learners import anchors_of, make_core, make_run
from fakes.sync_jobs import decoupled, synchronous

OVER = [PhaseIs(pb.COMPLETE)]


class ScriptedInbox:
    """A queue that says the next batch of messages whenever the training thread would wait."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._now: deque[ToTraining] = deque()
        self.script: deque[list[ToTraining]] = deque()

    def put(self, message: ToTraining) -> None:
        self._now.append(message)

    def get_nowait(self) -> ToTraining:
        if not self._now:
            raise queue.Empty
        return self._now.popleft()

    def get(self, timeout: float) -> ToTraining:
        if not self._now:
            self._clock.advance(timeout)
            assert self.script, "the training thread waits for something the test never says"
            self._now.extend(self.script.popleft())
        return self.get_nowait()


class Trainer:
    """A loop, its inbox and what it has posted."""

    def __init__(self, folder: Path, policy: SyncPolicy | None = None) -> None:
        self.clock = ManualClock()
        self.run = make_run(folder, policy or decoupled())
        self.task, self.core = make_core(self.run)
        self.core.generation = 0  # as before its first Join
        self.inbox = ScriptedInbox(self.clock)
        self.posted: list[ToExchange] = []
        self.unheard = 0.0
        self.account = Account(self.clock.monotonic)
        link = Link(self.inbox, self.post, lambda: self.unheard)  # type: ignore[arg-type]
        self.loop = TrainingLoop(
            self.task, self.core, self.run, link, account=self.account, tape=Tape(None), clock=self.clock.monotonic
        )

    def post(self, message: ToExchange) -> None:
        self.posted.append(message)
        if isinstance(message, Depart):
            self.inbox.put(Ended(ExitCode.COMPLETE, ""))

    def restored(self, job_step: int = 0, *, rejoin: bool = False) -> list[ToTraining]:
        anchors = anchors_of(self.core)
        return [PhaseIs(pb.RUNNING), Restored([0] * len(anchors), anchors, job_step, rejoin, 0.0, 0.0)]

    def granted(self, sequences: int, *, exhausted: bool = False, start: int = 0) -> Granted:
        ranges = [Range(0, start, start + sequences)] if sequences else []
        return Granted(ranges, exhausted)

    def train(self, *script: list[ToTraining]) -> Ended:
        self.inbox.script.extend(script)
        return self.loop.run()

    def kinds(self, kind: type) -> list[ToExchange]:
        return [message for message in self.posted if isinstance(message, kind)]


def test_it_trains_what_is_granted_and_leaves_when_the_job_is_complete(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    ended = trainer.train(trainer.restored(), [trainer.granted(10, exhausted=True)], OVER)
    assert ended.code == 0
    assert (trainer.core.steps, trainer.core.token_clock) == (3, 160), "the last batch is short"
    assert trainer.kinds(Depart) == [Depart("JobOver", within_seconds=15.0)]


def test_a_short_batch_is_taken_only_when_no_more_work_is_coming(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    more = [trainer.granted(2, start=6, exhausted=True)]
    trainer.train(trainer.restored(), [trainer.granted(6)], more, OVER)
    assert trainer.core.steps == 2


def test_nothing_is_trained_before_version_0_is_handed_out(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train([PhaseIs(pb.WAITING)], [PhaseIs(pb.COMPLETE)])
    assert trainer.core.steps == 0


def test_the_first_step_time_is_said_at_once_because_turns_wait_for_it(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(trainer.restored(), [trainer.granted(8, exhausted=True)], OVER)
    assert len(trainer.kinds(FirstStep)) == 1


def test_work_is_asked_for_before_it_runs_out(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(trainer.restored(), [trainer.granted(8)], [trainer.granted(0, exhausted=True)], OVER)
    assert trainer.posted.index(LeaseWanted()) < len(trainer.posted) - 1


def test_work_is_not_asked_for_after_every_step(tmp_path: Path) -> None:
    """A shrinking pool never gives some seconds' worth of steps; then half of the last grant is a good time to ask."""
    trainer = Trainer(tmp_path)
    trainer.train(trainer.restored(), [trainer.granted(80)], [trainer.granted(0, exhausted=True)], OVER)
    assert trainer.core.steps >= 10
    assert len(trainer.kinds(LeaseWanted)) <= trainer.core.steps / 2 + 1


def test_without_work_it_drains_stages_everything_and_says_so(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(trainer.restored(), [trainer.granted(4, exhausted=True)], OVER)
    assert trainer.kinds(Drained) == [Drained(True, 1)]
    idle_stages = {message.stage.fragment for message in trainer.kinds(Staged)}
    assert idle_stages == {0, 1}
    assert trainer.account.report().state is LearnerState.DRAIN


def test_new_work_ends_the_drain(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    again = [trainer.granted(4, exhausted=True, start=4)]
    trainer.train(trainer.restored(), [trainer.granted(4, exhausted=True)], again, OVER)
    assert trainer.core.steps == 2
    assert trainer.kinds(Drained) == [Drained(True, 1), Drained(False, 2), Drained(True, 2)]


def test_it_says_when_nothing_of_an_earlier_life_is_under_way(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    again = [Voided(), *trainer.restored(), trainer.granted(4, exhausted=True, start=4)]
    trainer.train([*trainer.restored(), trainer.granted(4, exhausted=True)], again, OVER)
    assert trainer.kinds(Installed) == [Installed(1), Installed(2)]
    first_drained = trainer.posted.index(Drained(True, 1))
    assert trainer.posted.index(Installed(2)) > first_drained
    assert trainer.kinds(Drained)[-1] == Drained(True, 1), "grants are counted from the Join on"


def test_draining_stops_it_although_there_is_work(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train([*trainer.restored(), PhaseIs(pb.DRAINING), trainer.granted(100)], [PhaseIs(pb.STOPPED)])
    assert trainer.core.steps == 0
    assert trainer.kinds(Drained) == [Drained(True, 1)]


def test_a_drained_learner_answers_the_closing_turns_from_its_present_values(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, synchronous({"sync_every": 8}))
    closing = [TurnSeen(1, 1, 0.0, needs_stage=True)]
    trainer.train(trainer.restored(), [trainer.granted(4, exhausted=True)], closing, OVER)
    last = trainer.kinds(Staged)[-1]
    assert (last.stage.fragment, last.stage.job_step, last.turn) == (1, 1, None)


@pytest.mark.parametrize(("unheard", "state"), [(0.0, "data_wait"), (31.0, "sync_wait")])
def test_waiting_for_work_is_counted_as_what_it_is(tmp_path: Path, unheard: float, state: str) -> None:
    trainer = Trainer(tmp_path)
    trainer.unheard = unheard
    trainer.train(trainer.restored(), [], OVER)
    assert trainer.account.report().state_seconds[LearnerState(state)] >= 1.0


def test_a_settlement_is_waited_for_until_the_synchronizer_is_unheard(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, synchronous({"sync_every": 2, "num_fragments": 1}))

    class Silence(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            trainer.unheard += 16.0
            return iter(())

    trainer.train(trainer.restored(), [trainer.granted(12, exhausted=True)], Silence(), Silence(), OVER)
    assert trainer.core.steps == 3
    assert trainer.account.report().state_seconds[LearnerState.SYNC_WAIT] == pytest.approx(2.0)


def test_a_void_lease_is_not_trained_and_a_rejoin_keeps_the_optimizer(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    anew = [*trainer.restored(job_step=0, rejoin=True), trainer.granted(4, exhausted=True)]
    trainer.train(trainer.restored(), [trainer.granted(4)], [trainer.granted(2, start=4), Voided()], anew, OVER)
    assert trainer.core.steps == 2
    assert {int(state["step"]) for state in trainer.core.optimizer.state.values()} == {2}


def test_asked_to_stop_it_hands_over_and_leaves(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)

    class Signal(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            trainer.loop.stop()
            return iter(())

    trainer.train(trainer.restored(), [trainer.granted(8)], Signal())
    sent = [message for message in trainer.kinds(Staged) if message.turn is not None]
    assert [(message.stage.fragment, message.stage.c_steps) for message in sent] == [(0, 2), (1, 2)]
    assert trainer.posted[-1] == Depart("Terminated", within_seconds=15.0)


def test_the_end_of_the_exchange_thread_is_the_end(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    fenced = Ended(ExitCode.FENCED, "learner 0 runs as a newer incarnation")
    assert trainer.train(trainer.restored(), [trainer.granted(4), fenced]) == fenced


def test_work_beyond_the_data_means_that_the_text_differs(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    with pytest.raises(DataError, match="the text differs from the Synchronizer's"):
        trainer.train(trainer.restored(), [trainer.granted(10_000)])
