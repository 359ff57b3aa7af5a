"""The sending half of a Learner: contributions as immutable values, their residuals, and which turn gets an answer.

No threads, no I/O. Per fragment there is at most one open contribution; it stays open, and is sent again verbatim,
until it is settled: merged in a version, or refused. The residual (error feedback) changes at that moment only. A
stage answers one turn. Values that are not finite are sent as a body of NaNs, so that the Synchronizer refuses them
by name and counts the tokens; no codec could say it better. What the Synchronizer does with a body: not here.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco_api.sync_policy import SyncPolicy
from diloco_api.tokens import Identity
from diloco_trainer.algorithm.codec import NonFiniteError, make_codec
from diloco_trainer.algorithm.fragments import FragmentLayout
from diloco_trainer.algorithm.pseudo_gradient import pseudo_gradient
from diloco_trainer.algorithm.residual import ErrorFeedback, Settled
from diloco_trainer.learner.core import Stage
from diloco_trainer.wire.chunks import sealed
from diloco_trainer.wire.gen import synchronizer_pb2 as pb


@dataclass(frozen=True)
class Contribution:
    """One answer; the same bytes at every resend."""

    header: pb.ContributionHeader
    payload: memoryview = field(repr=False)
    stage: Stage


@dataclass
class FragmentUplink:
    """What the sending half knows of one fragment."""

    anchor: Tensor
    base_version: int
    sequence: int = 0
    feedback: ErrorFeedback = field(default_factory=ErrorFeedback)
    stage: Stage | None = None
    """Newest stage; gone once it has answered."""
    asked: int | None = None
    """Turn that still waits for a stage."""
    is_answering: bool = False
    """A contribution is being made of a stage."""
    open: Contribution | None = None
    held: bool = False
    adopting: bool = False
    """A version is on its way into the model, not yet applied by the training thread."""
    catching_up: bool = False
    """That version comes without a contribution before it."""

    @property
    def is_free(self) -> bool:
        """Whether a stage could answer."""
        return self.open is None and not self.is_answering and not self.adopting


class Uplink:
    """Contributions of one incarnation in one epoch."""

    def __init__(self, identity: Identity, layout: FragmentLayout, policy: SyncPolicy, seed: int) -> None:
        self._identity = identity
        self._layout = layout
        self._policy = policy
        self._seed = seed
        self._codec = make_codec(policy.encode_up)
        self._epoch = 0
        self.generation = 0
        """Number of Joins so far."""
        self.fragments: list[FragmentUplink] = []

    def install(self, epoch: int, versions: Sequence[int], anchors: Sequence[Tensor]) -> None:
        """After a Join: nothing is open, no residual, these are the anchors. Sequences go on."""
        sequences = [fragment.sequence for fragment in self.fragments] or [0] * len(anchors)
        self._epoch = epoch
        self.generation += 1
        self.fragments = [
            FragmentUplink(anchor=anchor, base_version=version, sequence=sequence)
            for anchor, version, sequence in zip(anchors, versions, sequences, strict=True)
        ]

    def staged(self, stage: Stage) -> bool:
        """Keep the newest stage of a fragment; False when it is of no use (one is open, or its anchor is outdated)."""
        if stage.generation != self.generation:
            return False
        fragment = self.fragments[stage.fragment]
        if not fragment.is_free or stage.base_version != fragment.base_version:
            return False
        fragment.stage = stage
        return True

    def asked(self, turn: int, index: int) -> None:
        """A turn asks for a fragment; an open contribution is the answer already."""
        fragment = self.fragments[index]
        if fragment.open is None and not fragment.is_answering:
            fragment.asked = turn

    def take(self, index: int) -> tuple[Stage, int] | None:
        """The stage that answers the waiting turn and that turn, both used up; None when either is missing."""
        fragment = self.fragments[index]
        if fragment.asked is None or fragment.stage is None:
            return None
        stage, turn = fragment.stage, fragment.asked
        fragment.stage, fragment.asked = None, None
        fragment.is_answering = stage.c_steps > 0
        return stage, turn

    def nothing(self, stage: Stage, turn: int) -> pb.ContributionHeader:
        """The answer of a fragment that has not moved since its adoption."""
        header = self._header(stage, turn)
        header.nothing = True
        return header

    def make_contribution(self, stage: Stage, turn: int) -> Contribution:
        """Anchor minus staged values, plus the residual, encoded; open from now on."""
        fragment = self.fragments[stage.fragment]
        fits = stage.generation == self.generation and stage.base_version == fragment.base_version
        if fragment.open is not None or not fits or stage.c_steps < 1:
            raise ValueError(f"this stage of fragment {stage.fragment} cannot become a contribution")
        stage.ready()
        header = self._header(stage, turn)
        meant = pseudo_gradient(fragment.anchor, stage.values)
        if self._policy.error_feedback:
            meant = fragment.feedback.prepare(meant)
        body = self._encode(meant, header)
        if self._policy.error_feedback:
            fragment.feedback = fragment.feedback.opened(meant, self._codec.decode(body, meant.numel()))
        payload = memoryview(body.numpy().data)
        fragment.open = Contribution(sealed(header, payload), payload, stage)
        fragment.is_answering, fragment.held = False, False
        return fragment.open

    def hold(self, settlement: pb.Settlement) -> bool:
        """The open contribution came after its round and waits for the next one; False when it is not the open one."""
        if self._of(settlement) is None:
            return False
        self.fragments[settlement.fragment].held = True
        return True

    def settle(self, settlement: pb.Settlement) -> Contribution | None:
        """Close the open contribution: merged or refused. None when it is not the open one (a repeated notice)."""
        contribution = self._of(settlement)
        if contribution is None:
            return None
        fragment = self.fragments[settlement.fragment]
        if self._policy.error_feedback:
            how = Settled.MERGED if settlement.outcome == pb.MERGED else Settled.OTHER
            how = Settled.GUARD_REFUSED if settlement.discarded_by_guard else how
            fragment.feedback = fragment.feedback.settle(how)
        fragment.open, fragment.held, fragment.asked, fragment.stage = None, False, None, None
        fragment.adopting = True
        return contribution

    def published(self, index: int, version: int, anchor: Tensor) -> None:
        """The anchor that the training thread is about to adopt."""
        fragment = self.fragments[index]
        fragment.anchor, fragment.base_version = anchor, version

    def may_catch_up(self, stage: Stage) -> bool:
        """Whether a fragment without a step since its adoption, and with no contribution, may take a newer version.

        Else a Learner that has no work for a while would train on from an old version. A schedule of steps decides what
        a synchronous Learner adopts.
        """
        fragment = self.fragments[stage.fragment]
        fits = stage.generation == self.generation and stage.base_version == fragment.base_version
        return not self._policy.synchronous and fragment.is_free and fits and stage.c_steps == 0

    def catch_up(self, index: int, version: int, anchor: Tensor) -> None:
        """As `published`, but nothing was contributed."""
        self.published(index, version, anchor)
        fragment = self.fragments[index]
        fragment.stage, fragment.adopting, fragment.catching_up = None, True, True

    def adopted(self, index: int) -> None:
        """The training thread has adopted the published anchor."""
        self.fragments[index].adopting = self.fragments[index].catching_up = False

    def open_contributions(self) -> list[Contribution]:
        return [fragment.open for fragment in self.fragments if fragment.open is not None]

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way that a round waits for.

        Held for a round to come counts as quiet where only the closing rounds will come.
        """
        return all(
            fragment.is_free
            or fragment.catching_up
            or (self._policy.synchronous and fragment.held and not fragment.adopting)
            for fragment in self.fragments
        )

    def _of(self, settlement: pb.Settlement) -> Contribution | None:
        contribution = self.fragments[settlement.fragment].open
        if contribution is None or contribution.header.sequence != settlement.sequence:
            return None
        return contribution

    def _header(self, stage: Stage, turn: int) -> pb.ContributionHeader:
        fragment = self.fragments[stage.fragment]
        fragment.sequence += 1
        return pb.ContributionHeader(
            job_uid=self._identity.job_uid,
            epoch=self._epoch,
            index=self._identity.index,
            incarnation=self._identity.incarnation,
            fragment=stage.fragment,
            turn=turn,
            base_version=stage.base_version,
            sequence=fragment.sequence,
            stage_step=stage.job_step,
            token_clock=stage.token_clock,
            c_tokens=stage.c_tokens,
            c_steps=stage.c_steps,
            mean_lr=stage.mean_lr,
            codec=self._codec.kind.value,
            shape_digest=self._layout.fragments[stage.fragment].digest,
        )

    def _encode(self, meant: Tensor, header: pb.ContributionHeader) -> Tensor:
        seed = rounding_seed(self._seed, header.index, header.fragment, header.sequence)
        generator = torch.Generator().manual_seed(seed)
        try:
            return self._codec.encode(meant, self._policy.rounding_up, generator)
        except NonFiniteError:
            return torch.full((self._codec.encoded_bytes(meant.numel()),), 0xFF, dtype=torch.uint8)


def rounding_seed(seed: int, index: int, fragment: int, sequence: int) -> int:
    """Seed of the generator that rounds one contribution stochastically: a function of what it is, not of when."""
    digest = hashlib.sha256(struct.pack("<QIIQ", seed, index, fragment, sequence)).digest()
    return int.from_bytes(digest[:7], "little")
