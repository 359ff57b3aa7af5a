"""What is staged, waited for and adopted at which step."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from diloco_api.policy import SyncPolicy
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.boundary import Boundary
from diloco_trainer.learner.core import Adopted, Adoption, Stage
from diloco_trainer.learner.messages import Answered, HeldBack, Staged, ToExchange, TurnSeen
from diloco_trainer.learner.rate import Rate
from diloco_trainer.learner.tape import Tape
from fakes.clock import ManualClock
from fakes.learners import make_core, make_run
from fakes.sync_jobs import decoupled, synchronous


class Trainee:
    """A boundary with a hand on both of its sides."""

    def __init__(self, folder: Path, policy: SyncPolicy) -> None:
        run = make_run(folder, policy)
        self.task, self.core = make_core(run)
        self.posted: list[ToExchange] = []
        self.account = Account(ManualClock().monotonic)
        self.tape_file = folder / "tape.jsonl"
        self.tape = Tape(self.tape_file)
        self.boundary = Boundary(self.core, run, self.posted.append, Rate(run), account=self.account, tape=self.tape)
        self.waits = 0

    def steps(self, count: int, settle: Callable[["Trainee"], bool] = lambda trainee: False) -> None:
        """`settle` is what happens while a boundary waits; False: nobody is heard."""
        for _ in range(count):
            self.core.train_step(self.task.batch(0, range(4)), 1e-2)

            def wait(is_settled: Callable[[], bool]) -> bool:
                self.waits += not is_settled()
                return is_settled() or (settle(self) and is_settled())

            self.boundary.after_step(wait)

    def sent(self) -> list[tuple[int, int, int | None]]:
        """(job step, fragment, turn) of everything staged."""
        staged = [message for message in self.posted if isinstance(message, Staged)]
        return [(message.stage.job_step, message.stage.fragment, message.turn) for message in staged]

    def stage_of(self, fragment: int) -> Stage:
        return next(m.stage for m in reversed(self.posted) if isinstance(m, Staged) and m.stage.fragment == fragment)

    def arrive(self, fragment: int, version: int) -> None:
        stage = self.stage_of(fragment)
        self.boundary.receive(Adoption(fragment, version, torch.zeros_like(stage.values), stage))

    def adopted(self) -> list[tuple[int, Adopted]]:
        self.tape.flush()
        lines = self.tape_file.read_text().splitlines() if self.tape_file.exists() else []
        return [(event["fragment"], Adopted(event["how"])) for event in map(json.loads, lines)]


def arrive_all(trainee: Trainee) -> bool:
    for _, fragment, turn in trainee.sent():
        if trainee.core.clocks[fragment].base_version + 1 == turn:
            trainee.arrive(fragment, turn)
    return True


def test_a_synchronous_fragment_is_sent_by_the_step_schedule_and_waited_for_tau_steps_later(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, synchronous({"sync_every": 4, "num_fragments": 2, "sync_delay": 1}))
    trainee.steps(9, arrive_all)
    assert trainee.sent() == [(2, 1, 1), (4, 0, 1), (6, 1, 2), (8, 0, 2)]
    assert trainee.waits == 4
    assert trainee.adopted() == [(1, Adopted.TIMELY), (0, Adopted.TIMELY), (1, Adopted.TIMELY), (0, Adopted.TIMELY)]
    assert [clock.c_steps for clock in trainee.core.clocks] == [0, 2]


def test_what_arrives_before_tau_steps_is_adopted_at_exactly_tau(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, synchronous({"sync_every": 6, "num_fragments": 1, "sync_delay": 3}))
    trainee.steps(6)
    trainee.arrive(0, 1)
    trainee.steps(2)
    trainee.boundary.while_idle(drained=False)
    assert trainee.adopted() == []
    trainee.steps(1)
    assert trainee.adopted() == [(0, Adopted.TIMELY)]
    assert trainee.waits == 0


def test_with_an_unheard_synchronizer_it_trains_on_skips_sends_and_adopts_late(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, synchronous({"sync_every": 4, "num_fragments": 1, "sync_delay": 0}))
    trainee.steps(10)
    assert trainee.sent() == [(4, 0, 1)], "nothing is sent while one is open"
    trainee.arrive(0, 1)
    trainee.steps(1)
    assert trainee.adopted() == [(0, Adopted.LATE)]
    assert trainee.core.clocks[0].c_steps == 7
    trainee.steps(1)
    assert trainee.sent()[-1] == (12, 0, 2)


def test_a_held_contribution_is_not_waited_for(tmp_path: Path) -> None:
    def held(trainee: Trainee) -> bool:
        trainee.boundary.receive(HeldBack(0))
        return True

    trainee = Trainee(tmp_path, synchronous({"sync_every": 4, "num_fragments": 1}))
    trainee.steps(9, held)
    assert trainee.sent() == [(4, 0, 1)]
    assert trainee.adopted() == []
    trainee.arrive(0, 2)
    trainee.steps(1)
    assert trainee.adopted() == [(0, Adopted.LATE)]
    assert trainee.core.clocks[0].base_version == 2


def test_at_the_end_what_is_on_its_way_is_adopted_as_it_arrives_and_all_is_staged_once(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, synchronous({"sync_every": 6, "num_fragments": 1, "sync_delay": 3}))
    trainee.steps(7)
    trainee.arrive(0, 1)
    trainee.boundary.while_idle(drained=True)
    trainee.boundary.while_idle(drained=True)
    assert trainee.adopted() == [(0, Adopted.TIMELY)]
    assert trainee.sent() == [(6, 0, 1), (7, 0, None)]


def test_a_decoupled_learner_stages_what_the_next_turns_may_ask_for(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, decoupled({"sync_every": 6, "num_fragments": 6}))
    trainee.boundary.receive(TurnSeen(7, 1, 1.0, needs_stage=False))
    trainee.account.stepped(step=1, job_step=1, token_clock=1, seconds=1.5, loss=1, rate=1, warmup_left=0)
    trainee.steps(1)
    assert trainee.sent() == [(1, 2, None), (1, 3, None), (1, 4, None)]
    assert trainee.waits == 0


def test_a_turn_that_found_no_stage_gets_one_at_the_next_boundary(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, decoupled({"sync_every": 6, "num_fragments": 6}))
    trainee.boundary.receive(TurnSeen(5, 5, 1.0, needs_stage=True))
    trainee.steps(2)
    assert (1, 5, None) in trainee.sent()
    assert (2, 5, None) not in trainee.sent()


def test_a_fragment_on_its_way_is_not_staged_again_before_its_adoption(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, decoupled({"num_fragments": 1}))
    trainee.steps(1)
    trainee.boundary.receive(Answered(0))
    trainee.steps(2)
    assert trainee.sent() == [(1, 0, None)]
    trainee.arrive(0, 1)
    trainee.steps(1)
    assert trainee.adopted() == [(0, Adopted.LATE)]
    assert trainee.sent()[-1] == (4, 0, None)


def test_a_decoupled_adoption_happens_at_the_first_boundary_after_it_arrived(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, decoupled({"num_fragments": 1, "sync_delay": 1}))
    trainee.steps(1)
    trainee.boundary.receive(Answered(0))
    trainee.arrive(0, 1)
    assert trainee.adopted() == []
    trainee.steps(1)
    assert trainee.adopted() == [(0, Adopted.TIMELY)]
    assert trainee.posted[-1].stage.c_steps == 0, "the next turn is answered with nothing"


def test_handing_over_sends_what_has_moved_and_is_not_on_its_way(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, decoupled({"sync_every": 6, "num_fragments": 3}))
    trainee.boundary.receive(TurnSeen(41, 2, 1.0, needs_stage=False))
    trainee.steps(1)
    trainee.boundary.receive(Answered(1))
    trainee.posted.clear()
    trainee.boundary.hand_over()
    assert trainee.sent() == [(1, 0, 41), (1, 2, 41)]


def test_after_a_rejoin_nothing_old_is_on_its_way(tmp_path: Path) -> None:
    trainee = Trainee(tmp_path, synchronous({"sync_every": 4, "num_fragments": 1}))
    trainee.steps(5)
    trainee.arrive(0, 1)
    trainee.boundary.reset()
    trainee.steps(3)
    assert trainee.adopted() == []
    assert trainee.sent()[-1] == (8, 0, 1)
