"""One Learner driven by hand: the product's own halves of a Learner, without its two threads.

`HandLearner` does with core, uplink, downlink and work, call by call over real gRPC, what the threads do; the test says
when. No algorithm is written here.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from diloco_api.tokens import Identity
from diloco_trainer.learner.core import Adopted, Adoption, LearnerCore, Stage
from diloco_trainer.learner.downlink import Downlink
from diloco_trainer.learner.rate import Rate
from diloco_trainer.learner.uplink import Contribution, Uplink
from diloco_trainer.learner.work import Range, Work
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import PROTOCOL_VERSION
from diloco_trainer.wire.service import Synchronizer
from reference.hand import Scripted

T = TypeVar("T")


@dataclass
class HandLearner:
    """One incarnation. Every method is one thing a Learner does; what it waits for has happened before."""

    scripted: Scripted
    identity: Identity
    client: Synchronizer
    core: LearnerCore
    uplink: Uplink
    downlink: Downlink
    rate: Rate
    work: Work = field(default_factory=Work)
    losses: list[float] = field(default_factory=list)
    taken: list[tuple[float, list[tuple[int, int, int]]]] = field(default_factory=list)
    """Rate and data of every step, as a reference is given them."""
    settlements: deque[pb.Settlement] = field(default_factory=deque)
    turns: deque[pb.Turn] = field(default_factory=deque)
    phase: int = pb.PHASE_UNSPECIFIED
    requests: int = 0
    listening: "asyncio.Task[None] | None" = None

    @classmethod
    async def join(cls, scripted: Scripted, index: int, incarnation: int = 1) -> "HandLearner":
        run = scripted.run
        identity = Identity(run.job_uid, index, incarnation)
        core = LearnerCore(scripted.task, run.train, run.policy, torch.device("cpu"))
        uplink = Uplink(identity, core.layout, run.policy, run.train.seed)
        client = scripted.exchange.learner(index, incarnation)
        learner = cls(scripted, identity, client, core, uplink, Downlink(run.policy.encode_down), Rate(run))
        reply = await client.join(
            pb.JoinRequest(
                protocol_version=PROTOCOL_VERSION,
                job_uid=run.job_uid,
                index=index,
                incarnation=incarnation,
                site="here",
                layout_digest=core.layout.digest,
            )
        )
        learner.downlink.epoch = reply.epoch
        learner.rate.joined(reply.rejoin)
        learner.listening = asyncio.create_task(learner._listen())
        scripted.learners.append(learner)
        return learner

    async def restore(self) -> None:
        """Version 0 has been handed out: take the newest version of everything over."""
        anchors, versions, step = [], [], 0
        for fragment in self.core.layout.fragments:
            anchor, version = await self.pull(fragment.index, None, 0, 0)
            anchors.append(anchor)
            versions.append(version)
        self.uplink.install(self.downlink.epoch, versions, anchors)
        self.core.install(versions, anchors, step)

    async def pull(self, fragment: int, anchor: Tensor | None, have: int, want: int) -> tuple[Tensor, int]:
        request = pb.PullRequest(
            index=self.identity.index,
            incarnation=self.identity.incarnation,
            fragment=fragment,
            raw=anchor is None,
            have_version=have,
            want_version=want,
        )
        async for item in self.client.pull(request):
            anchor = self.downlink.apply(anchor, item, self.core.layout.fragments[fragment].numel)
            have = item.version
            self.rate.adopted(item.stamp, item.tokens_per_second)
        assert anchor is not None
        return anchor, have

    async def lease(self, steps: int) -> bool:
        """Ask for the work of so many steps; False when there is none left."""
        self.requests += 1
        batch = self.scripted.run.train.batch.sequences
        reply = await self.client.lease(
            pb.LeaseRequest(
                index=self.identity.index,
                incarnation=self.identity.incarnation,
                remaining_sequences=self.work.num_sequences,
                batch_sequences=batch,
                want_sequences=steps * batch,
                request_number=self.requests,
            )
        )
        self.work.add(Range(getattr(part, "pass"), part.start, part.stop) for part in reply.ranges)
        return len(reply.ranges) > 0

    async def train(self, steps: int = 1, *, sequences: int | None = None) -> int:
        """Inner steps as far as there is work, leasing as needed; returns how many.

        `sequences` makes the batch another size than the job's; the last one of all may be short.
        """
        size = sequences or self.scripted.run.train.batch.sequences
        for done in range(steps):
            if self.work.num_sequences < size:
                await self.lease(10_000)
            ranges = self.work.take(size)
            if not ranges:
                return done
            parts = [self.scripted.task.batch(r.pass_index, range(r.start, r.stop)) for r in ranges]
            rate = self.rate.next(self.core.job_step, None)
            self.taken.append((rate, [(r.pass_index, r.start, r.stop) for r in ranges]))
            self.losses.append(self.core.train_step(torch.cat(parts), rate))
        return steps

    async def heartbeat(self, *, step_seconds: float = 1.0, drained: bool = False) -> pb.HeartbeatReply:
        return await self.client.heartbeat(
            pb.HeartbeatRequest(
                index=self.identity.index,
                incarnation=self.identity.incarnation,
                state="training",
                step=self.core.steps,
                job_step=self.core.job_step,
                token_clock=self.core.token_clock,
                step_seconds=step_seconds,
                loss=self.losses[-1] if self.losses else float("nan"),
                drained=drained,
            )
        )

    async def answer(self, fragment: int, turn: int, stage: Stage | None = None) -> pb.Settlement:
        """Answer a turn from a stage (now, if none is given); what the reply says is settled is noted."""
        made = self.make_answer(fragment, turn, stage)
        return await self.deliver(made)

    def make_answer(self, fragment: int, turn: int, stage: Stage | None = None) -> Contribution | pb.ContributionHeader:
        self.uplink.staged(stage or self.core.stage(fragment))
        self.uplink.asked(turn, fragment)
        taken = self.uplink.take(fragment)
        assert taken is not None, "nothing to answer with"
        if taken[0].c_steps == 0:
            return self.uplink.nothing(*taken)
        return self.uplink.make_contribution(*taken)

    async def deliver(self, made: Contribution | pb.ContributionHeader) -> pb.Settlement:
        if isinstance(made, Contribution):
            settlement = await self.client.contribute(made.header, made.payload)
        else:
            settlement = await self.client.contribute(made, b"")
        if settlement.outcome == pb.HELD:
            self.uplink.hold(settlement)
        if settlement.outcome in (pb.MERGED, pb.REFUSED):
            self.settlements.append(settlement)
        self.scripted.remember()
        return settlement

    async def adopt(self, fragment: int) -> Adopted:
        """Wait for the settlement of the open contribution of a fragment, pull what it leads to, and adopt."""
        settlement = await self.settlement(fragment)
        contribution = self.uplink.settle(settlement)
        assert contribution is not None, "not the open one"
        uplink = self.uplink.fragments[fragment]
        version, anchor = uplink.base_version, uplink.anchor
        if settlement.version != version:
            anchor, version = await self.pull(fragment, anchor, version, settlement.version)
        self.uplink.published(fragment, version, anchor)
        how = self.core.adopt(Adoption(fragment, version, anchor, contribution.stage))
        self.uplink.adopted(fragment)
        return how

    async def settlement(self, fragment: int) -> pb.Settlement:
        opened = self.uplink.fragments[fragment].open
        assert opened is not None, "nothing is open"

        def found() -> pb.Settlement | None:
            mine = (s for s in self.settlements if s.fragment == fragment and s.sequence == opened.header.sequence)
            return next(mine, None)

        return await until(found)

    async def leave(self) -> None:
        identity = self.identity
        await self.client.leave(pb.LeaveRequest(index=identity.index, incarnation=identity.incarnation, reason="over"))

    async def close(self) -> None:
        assert self.listening is not None
        self.listening.cancel()
        await asyncio.gather(self.listening, return_exceptions=True)

    async def _listen(self) -> None:
        async for notice in self.client.turns():
            if notice.HasField("turn"):
                self.turns.append(notice.turn)
            elif notice.HasField("settlement") and notice.settlement.outcome in (pb.MERGED, pb.REFUSED):
                self.settlements.append(notice.settlement)
            elif notice.HasField("phase"):
                self.phase = notice.phase


async def until(ready: Callable[[], T | None]) -> T:
    """What `ready` returns once it is there: messages are on their way through the loop and its sockets."""
    async with asyncio.timeout(20):
        while (value := ready()) is None:
            await asyncio.sleep(0.001)
    return value
