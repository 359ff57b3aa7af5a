"""Contributions as values: what is sent, how often, and what is left of it."""

from pathlib import Path

import pytest
import torch

from diloco_api.policy import SyncPolicy
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.learner.core import LearnerCore, Stage
from diloco_trainer.learner.uplink import Contribution, Uplink, rounding_seed
from diloco_trainer.task.task import Task
from diloco_trainer.wire.chunks import checksum
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.learners import anchors_of, make_core, make_run, make_uplink
from fakes.sync_jobs import decoupled, synchronous


class Learner:
    """Core and uplink side by side."""

    def __init__(self, folder: Path, policy: SyncPolicy | None = None) -> None:
        run = make_run(folder, policy or decoupled())
        self.policy = run.policy
        self.task: Task
        self.core: LearnerCore
        self.task, self.core = make_core(run)
        self.uplink: Uplink = make_uplink(run, self.core)
        self.codec = make_codec(run.policy.encode_up)

    def step(self) -> None:
        self.core.train_step(self.task.batch(0, range(4)), 1e-2)

    def staged(self, fragment: int = 0) -> Stage:
        self.step()
        stage = self.core.stage(fragment)
        assert self.uplink.staged(stage)
        return stage

    def contributed(self, fragment: int = 0, turn: int = 1) -> Contribution:
        self.staged(fragment)
        self.uplink.asked(turn, fragment)
        taken = self.uplink.take(fragment)
        assert taken is not None
        return self.uplink.make_contribution(*taken)

    def decoded(self, contribution: Contribution) -> torch.Tensor:
        data = torch.frombuffer(bytearray(contribution.payload), dtype=torch.uint8)
        return self.codec.decode(data, contribution.stage.values.numel())

    def settled(self, contribution: Contribution, outcome: int, version: int = 1, **more: object) -> pb.Settlement:
        header = contribution.header
        return pb.Settlement(
            fragment=header.fragment, sequence=header.sequence, outcome=outcome, version=version, **more
        )

    def adopt_nothing_new(self, fragment: int, version: int) -> None:
        """The round is over; the model stays where it is."""
        self.uplink.published(fragment, version, anchors_of(self.core)[fragment])
        self.core.clocks[fragment].base_version = version
        self.uplink.adopted(fragment)


def test_a_contribution_is_anchor_minus_staged_with_an_honest_header(tmp_path: Path) -> None:
    learner = Learner(tmp_path, synchronous())
    anchor = learner.uplink.fragments[1].anchor
    made = learner.contributed(fragment=1, turn=9)
    header = made.header
    assert torch.equal(learner.decoded(made), anchor - made.stage.values)
    assert (header.fragment, header.turn, header.base_version, header.sequence) == (1, 9, 0, 1)
    assert (header.stage_step, header.token_clock, header.c_tokens, header.c_steps) == (1, 64, 64, 1)
    assert (header.epoch, header.index, header.incarnation, header.codec) == (7, 0, 1, "fp32")
    assert header.shape_digest == learner.core.layout.fragments[1].digest
    assert (header.size_bytes, header.checksum) == (made.payload.nbytes, checksum(made.payload))


def test_a_fragment_has_one_open_contribution_until_it_is_adopted(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    made = learner.contributed()
    learner.step()
    assert not learner.uplink.staged(learner.core.stage(0))
    learner.uplink.asked(2, 0)
    assert learner.uplink.take(0) is None
    assert learner.uplink.settle(learner.settled(made, pb.MERGED)) is made
    assert not learner.uplink.staged(learner.core.stage(0)), "its version is not adopted yet"
    learner.adopt_nothing_new(0, 1)
    again = learner.contributed(turn=3)
    assert (again.header.sequence, again.header.base_version, again.header.turn) == (2, 1, 3)


def test_what_is_open_is_sent_again_as_the_same_bytes(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    made = learner.contributed()
    header, payload = made.header.SerializeToString(deterministic=True), bytes(made.payload)
    learner.step()
    (still,) = learner.uplink.open_contributions()
    assert (still.header.SerializeToString(deterministic=True), bytes(still.payload)) == (header, payload)


def test_a_stage_answers_one_turn(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    made = learner.contributed()
    learner.uplink.settle(learner.settled(made, pb.REFUSED, version=0))
    learner.adopt_nothing_new(0, 0)
    learner.uplink.asked(5, 0)
    assert learner.uplink.take(0) is None


def test_a_turn_waits_for_the_next_stage(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    learner.uplink.asked(4, 0)
    assert learner.uplink.take(0) is None
    stage = learner.staged()
    assert learner.uplink.take(0) == (stage, 4)


def test_a_newer_stage_replaces_an_older_one(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    learner.staged()
    newer = learner.staged()
    learner.uplink.asked(1, 0)
    assert learner.uplink.take(0) == (newer, 1)


def test_a_fragment_that_has_not_moved_answers_nothing_and_stays_free(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    assert learner.uplink.staged(learner.core.stage(0))
    learner.uplink.asked(3, 0)
    taken = learner.uplink.take(0)
    assert taken is not None
    header = learner.uplink.nothing(*taken)
    assert (header.nothing, header.turn, header.c_steps, header.c_tokens, header.size_bytes) == (True, 3, 0, 0, 0)
    assert header.sequence >= 1
    assert learner.uplink.fragments[0].is_free


def test_stages_of_an_earlier_life_are_worthless(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    learner.step()
    stage = learner.core.stage(0)
    anchors = anchors_of(learner.core)
    learner.uplink.install(8, [0, 0], anchors)
    assert not learner.uplink.staged(stage)
    learner.core.install([0, 0], anchors, 0)
    made = learner.contributed()
    assert made.header.epoch == 8


def test_sequences_go_on_after_a_rejoin(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    learner.contributed()
    anchors = anchors_of(learner.core)
    learner.uplink.install(7, [0, 0], anchors)
    learner.core.install([0, 0], anchors, 0)
    assert learner.contributed().header.sequence == 2


@pytest.mark.parametrize(
    ("outcome", "by_guard", "kept"),
    [(pb.MERGED, False, "new"), (pb.REFUSED, True, "none"), (pb.REFUSED, False, "old")],
    ids=["merged", "refused by the guard", "dropped"],
)
def test_the_residual_changes_at_the_settlement_only(tmp_path: Path, outcome: int, by_guard: bool, kept: str) -> None:
    learner = Learner(tmp_path)  # int4 with error feedback
    uplink = learner.uplink.fragments[0]
    first = learner.contributed()
    learner.uplink.settle(learner.settled(first, pb.MERGED))
    learner.adopt_nothing_new(0, 1)
    old = uplink.feedback.residual
    assert old is not None
    meant = (uplink.anchor - learner.staged().values) + old.float()
    learner.uplink.asked(2, 0)
    taken = learner.uplink.take(0)
    assert taken is not None
    second = learner.uplink.make_contribution(*taken)
    assert uplink.feedback.residual is old
    learner.uplink.settle(learner.settled(second, outcome, 2, discarded_by_guard=by_guard))
    lost = (meant - learner.decoded(second)).bfloat16()
    wanted = {"new": lost, "none": None, "old": old}[kept]
    residual = uplink.feedback.residual
    assert (residual is None and wanted is None) or torch.equal(residual, wanted)


def test_a_settlement_told_twice_counts_once(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    made = learner.contributed()
    told = learner.settled(made, pb.MERGED)
    assert learner.uplink.settle(told) is made
    residual = learner.uplink.fragments[0].feedback
    assert learner.uplink.settle(told) is None
    assert learner.uplink.fragments[0].feedback is residual


def test_a_settlement_of_another_sequence_is_not_ours(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    made = learner.contributed()
    other = pb.Settlement(fragment=0, sequence=made.header.sequence + 1, outcome=pb.MERGED, version=1)
    assert learner.uplink.settle(other) is None
    assert learner.uplink.fragments[0].open is made


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16", "int8", "int4", "e3m0"])
def test_values_that_are_not_finite_arrive_as_such(tmp_path: Path, codec: str) -> None:
    learner = Learner(tmp_path, decoupled({"encode_up": codec, "error_feedback": False}))
    with torch.no_grad():
        learner.core.params[learner.core.layout.fragments[0].tensors[0].name].view(-1)[0] = torch.nan
    made = learner.contributed()
    data = torch.frombuffer(bytearray(made.payload), dtype=torch.uint8)
    numel = made.stage.values.numel()
    assert data.numel() == learner.codec.encoded_bytes(numel)
    assert not learner.codec.is_finite(data, numel)


def test_stochastic_rounding_depends_on_what_is_sent_and_not_on_when(tmp_path: Path) -> None:
    policy = decoupled({"encode_up": "e3m0", "rounding_up": "stochastic", "error_feedback": False})
    bodies = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        bodies.append(bytes(Learner(tmp_path, policy).contributed().payload))
    assert bodies[0] == bodies[1]
    assert len({rounding_seed(0, index, fragment, 1) for index in range(3) for fragment in range(3)}) == 9


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_held_is_quiet_only_where_no_turn_will_come(tmp_path: Path, is_synchronous: bool) -> None:
    learner = Learner(tmp_path, synchronous() if is_synchronous else decoupled())
    assert learner.uplink.is_quiet
    made = learner.contributed()
    assert not learner.uplink.is_quiet
    assert learner.uplink.hold(learner.settled(made, pb.HELD))
    assert learner.uplink.is_quiet is is_synchronous
    learner.uplink.settle(learner.settled(made, pb.MERGED))
    assert not learner.uplink.is_quiet, "its version is not adopted yet"
    learner.adopt_nothing_new(0, 1)
    assert learner.uplink.is_quiet
