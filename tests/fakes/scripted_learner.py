"""A Learner of known moves: what it contributes is a function of who it is and how often it has contributed.

It speaks the wire's `Synchronizer` seam and keeps what a Learner must keep: anchors, token clock, open contributions.
"""

from contextlib import aclosing
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco_api.policy import Rounding
from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.algorithm.fragments import FragmentLayout
from diloco_trainer.wire.chunks import sealed
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import PROTOCOL_VERSION
from diloco_trainer.wire.service import Synchronizer


@dataclass
class Part:
    """One fragment at this Learner."""

    anchor: Tensor
    version: int
    adopted_clock: int = 0
    adopted_step: int = 0
    sequence: int = 0
    open: tuple[pb.ContributionHeader, bytes] | None = None


@dataclass
class ScriptedLearner:
    """One incarnation."""

    run: RunConfig
    layout: FragmentLayout
    wire: Synchronizer
    index: int
    incarnation: int = 1
    parts: list[Part] = field(default_factory=list)
    step: int = 0
    clock: int = 0
    leased: int = 0
    request_number: int = 0
    epoch: int = 0

    @property
    def batch_tokens(self) -> int:
        return self.run.train.batch.sequences * self.run.train.data.sequence_length

    async def join(self) -> pb.JoinReply:
        reply = await self.wire.join(
            pb.JoinRequest(
                protocol_version=PROTOCOL_VERSION,
                job_uid=self.run.job_uid,
                index=self.index,
                incarnation=self.incarnation,
                site="here",
                layout_digest=self.layout.digest,
            )
        )
        self.epoch = reply.epoch
        return reply

    async def pull_everything(self) -> None:
        """Adopt the newest version of every fragment."""
        for fragment in self.layout.fragments:
            request = pb.PullRequest(index=self.index, incarnation=self.incarnation, fragment=fragment.index, raw=True)
            async for item in self.wire.pull(request):
                anchor = torch.frombuffer(bytearray(item.payload), dtype=torch.float32)
                assert item.digest == anchor_digest(self.epoch, fragment.index, item.version, anchor)
                self.parts.append(Part(anchor, item.version))

    async def lease(self, want: int = 1000, again: bool = False) -> pb.LeaseReply:
        self.request_number += 0 if again else 1
        remaining = self.leased - self.clock // self.run.train.data.sequence_length
        reply = await self.wire.lease(
            pb.LeaseRequest(
                index=self.index,
                incarnation=self.incarnation,
                remaining_sequences=max(0, remaining),
                batch_sequences=self.run.train.batch.sequences,
                want_sequences=want,
                request_number=self.request_number,
                token_clock=self.clock,
            )
        )
        if not again:
            self.leased += sum(part.stop - part.start for part in reply.ranges)
        return reply

    def train(self, steps: int = 1) -> None:
        self.step += steps
        self.clock += steps * self.batch_tokens

    async def heartbeat(self, drained: bool = False, step_seconds: float = 1.0) -> pb.HeartbeatReply:
        return await self.wire.heartbeat(
            pb.HeartbeatRequest(
                index=self.index,
                incarnation=self.incarnation,
                state="drain" if drained else "training",
                step=self.step,
                job_step=self.step,
                token_clock=self.clock,
                step_seconds=step_seconds,
                loss=float("nan"),
                drained=drained,
                state_seconds={"training": float(self.step)},
            )
        )

    def delta(self, fragment: int, sequence: int) -> Tensor:
        """What this Learner contributes as its `sequence`-th contribution of a fragment."""
        seed = ((self.index * 31 + self.incarnation) * 31 + fragment) * 1009 + sequence
        numel = self.layout.fragments[fragment].numel
        return torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * 0.01

    async def contribute(self, fragment: int, turn: int, delta: Tensor | None = None) -> pb.Settlement:
        """Stage and send a new contribution."""
        part = self.parts[fragment]
        assert part.open is None
        sequence = part.sequence + 1
        codec = make_codec(self.run.policy.encode_up)
        values = self.delta(fragment, sequence) if delta is None else delta
        payload = bytes(codec.encode(values, Rounding.NEAREST, None).numpy())
        return await self.send(self.header(fragment, turn, sequence, payload), payload)

    async def nothing(self, fragment: int, turn: int) -> pb.Settlement:
        """Answer a turn at the very boundary of the adoption: no step since."""
        part = self.parts[fragment]
        header = self.header(fragment, turn, part.sequence + 1, b"")
        header.token_clock, header.c_tokens, header.c_steps, header.nothing = part.adopted_clock, 0, 0, True
        return await self.wire.contribute(header, b"")

    def header(self, fragment: int, turn: int, sequence: int, payload: bytes) -> pb.ContributionHeader:
        part = self.parts[fragment]
        header = pb.ContributionHeader(
            job_uid=self.run.job_uid,
            epoch=self.epoch,
            index=self.index,
            incarnation=self.incarnation,
            fragment=fragment,
            turn=turn,
            base_version=part.version,
            sequence=sequence,
            stage_step=self.step,
            token_clock=self.clock,
            c_tokens=self.clock - part.adopted_clock,
            c_steps=self.step - part.adopted_step,
            codec=self.run.policy.encode_up.value,
            shape_digest=self.layout.fragments[fragment].digest,
        )
        return sealed(header, payload)

    async def send(self, header: pb.ContributionHeader, payload: bytes) -> pb.Settlement:
        self.parts[header.fragment].open = (header, payload)
        return await self.wire.contribute(header, payload)

    async def resend(self, fragment: int) -> pb.Settlement:
        opened = self.parts[fragment].open
        assert opened is not None
        return await self.wire.contribute(*opened)

    async def listen(self) -> None:
        """Open a stream of notices for a moment: what it waits for is asked for elsewhere."""
        async with aclosing(self.wire.turns()) as notices:
            await anext(notices)

    async def adopt(self, settlement: pb.Settlement) -> None:
        """Take in a settlement: pull, check the digest, start the next stretch."""
        part = self.parts[settlement.fragment]
        assert part.open is not None
        header, _ = part.open
        assert settlement.sequence == header.sequence
        assert settlement.outcome in (pb.MERGED, pb.REFUSED)
        request = pb.PullRequest(
            index=self.index,
            incarnation=self.incarnation,
            fragment=settlement.fragment,
            have_version=part.version,
            want_version=settlement.version,
        )
        codec = make_codec(self.run.policy.encode_down)
        async for item in self.wire.pull(request):
            delta = codec.decode(torch.frombuffer(bytearray(item.payload), dtype=torch.uint8), part.anchor.numel())
            part.anchor = part.anchor + delta
            part.version = item.version
            assert item.digest == anchor_digest(self.epoch, settlement.fragment, item.version, part.anchor)
        part.sequence, part.open = header.sequence, None
        part.adopted_clock, part.adopted_step = self.clock, self.step
