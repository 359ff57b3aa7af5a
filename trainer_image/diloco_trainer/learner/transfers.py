"""Payload on its way: answers to turns, their settlement, and the pulls that follow, one task each.

Runs on the exchange thread's event loop; tensors are worked on by one helper thread, so that heartbeats and turns go
on meanwhile. Everything is repeated until it is settled: an open contribution verbatim, a pull until its digest is
right.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from diloco_api.tokens import Identity
from diloco_trainer.algorithm.events import RefusalReason
from diloco_trainer.algorithm.fragments import FragmentLayout
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.core import Adoption, Stage
from diloco_trainer.learner.downlink import DigestMismatch, Downlink
from diloco_trainer.learner.messages import Answered, HeldBack, Restored, Staged, ToTraining
from diloco_trainer.learner.patience import Patience
from diloco_trainer.learner.tape import Tape
from diloco_trainer.learner.uplink import Contribution, Uplink
from diloco_trainer.wire.errors import Reason, Refused, SynchronizerUnavailable, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.service import PullItem, Synchronizer

_T = TypeVar("_T")
_SEND_AGAIN = (Reason.BAD_CHECKSUM, Reason.TRUNCATED)
_MOST_WRONG_DIGESTS = 3
NEWEST = 0
"""Version asked for when it is not known."""

Spawn = Callable[[Coroutine[None, None, None]], "asyncio.Task[None]"]


class Transfers:
    """All payload of one incarnation. `spawn` starts a task that ends with the session."""

    def __init__(
        self,
        client: Synchronizer,
        identity: Identity,
        layout: FragmentLayout,
        uplink: Uplink,
        downlink: Downlink,
        *,
        account: Account,
        tape: Tape,
        patience: Patience,
        helper: Executor,
        tell: Callable[[ToTraining], None],
        spawn: Spawn,
    ) -> None:
        self._client = client
        self._identity = identity
        self._layout = layout
        self.uplink = uplink
        self._downlink = downlink
        self._account = account
        self._tape = tape
        self._patience = patience
        self._helper = helper
        self._tell = tell
        self._spawn = spawn
        self._deliveries: dict[int, asyncio.Task[None]] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when `uplink.is_quiet` may have changed."""

    # --- joining --------------------------------------------------------------------------------------------------

    async def restore(self, reply: pb.JoinReply) -> None:
        """Pull every fragment's published values and hand them to the training thread."""
        self._downlink.epoch = reply.epoch
        pulled = [await self._pull(fragment.index, None, 0, 0) for fragment in self._layout.fragments]
        items = [item for _, item in pulled]
        anchors = [anchor for anchor, _ in pulled]
        versions = [item.version for item in items]
        self.uplink.install(reply.epoch, versions, anchors)
        newest = max(items, key=lambda item: item.stamp)
        step = max(reply.job_step, *(item.stage_step for item in items))
        self._tape.write(
            "join",
            epoch=reply.epoch,
            index=self._identity.index,
            incarnation=self._identity.incarnation,
            versions=versions,
            step=step,
            rejoin=reply.rejoin,
        )
        self._tell(Restored(versions, anchors, step, reply.rejoin, newest.stamp, newest.tokens_per_second))

    # --- answering ------------------------------------------------------------------------------------------------

    def asked(self, turn: int, index: int) -> bool:
        """A turn was announced: answer it now if a stage is there. True when a stage is needed first."""
        self.uplink.asked(turn, index)
        self._answer(index)
        return self.uplink.fragments[index].asked is not None

    def staged(self, message: Staged) -> None:
        """The training thread has staged a fragment."""
        if self.uplink.staged(message.stage):
            if message.turn is not None:
                self.uplink.asked(message.turn, message.stage.fragment)
            self._answer(message.stage.fragment)

    def resend_open(self) -> None:
        """After a broken stream: every open contribution again, unless it is being sent anyway."""
        for contribution in self.uplink.open_contributions():
            if contribution.header.fragment not in self._deliveries:
                self._start_delivery(contribution.header.fragment, self._deliver(contribution))

    async def delivered(self, within_seconds: float) -> None:
        """Wait until everything sent has been acknowledged, or the time is over."""
        if self._deliveries:
            await asyncio.wait(list(self._deliveries.values()), timeout=within_seconds)

    def _answer(self, index: int) -> None:
        taken = self.uplink.take(index)
        if taken is None:
            return
        stage, turn = taken
        if stage.c_steps == 0:
            self._spawn(self._send_nothing(self.uplink.nothing(stage, turn), stage))
        else:
            self._tell(Answered(index))
            self._start_delivery(index, self._contribute(stage, turn))

    def _start_delivery(self, index: int, work: Coroutine[None, None, None]) -> None:
        task = self._spawn(work)
        self._deliveries[index] = task
        task.add_done_callback(lambda done: self._delivery_over(index, done))

    def _delivery_over(self, index: int, task: "asyncio.Task[None]") -> None:
        if self._deliveries.get(index) is task:
            del self._deliveries[index]

    async def _contribute(self, stage: Stage, turn: int) -> None:
        contribution = await self._work(self.uplink.make_contribution, stage, turn)
        self._tape.contribution(contribution.header)
        await self._deliver(contribution)

    async def _deliver(self, contribution: Contribution) -> None:
        attempt = 0
        while self.uplink.fragments[contribution.header.fragment].open is contribution:
            try:
                settlement = await self._client.contribute(contribution.header, contribution.payload)
            except SynchronizerUnavailable:
                await self._patience.pause(attempt)
                attempt += 1
                continue
            except Refused as error:
                if error.reason in _SEND_AGAIN:
                    await self._patience.pause(attempt)
                    attempt += 1
                    continue
                if error.reason is not Reason.BEYOND_LEASE:
                    self._patience.refused(error)
                settlement = _refused(contribution, error)
            except WireError as error:
                self._patience.refused(error)
                raise
            self._patience.heard()
            self._account.sent(contribution.payload.nbytes)
            self.settled(settlement)
            return

    async def _send_nothing(self, header: pb.ContributionHeader, stage: Stage) -> None:
        """Worth one attempt: a turn that missed it asks again when the stream is opened again."""
        try:
            await self._client.contribute(header, b"")
            self._patience.heard()
        except SynchronizerUnavailable:
            return
        except Refused as error:
            if error.reason is not Reason.BEYOND_LEASE:
                self._patience.refused(error)
            self._patience.heard()  # the turn goes without this Learner's answer; nothing was to be merged
        except WireError as error:
            self._patience.refused(error)
        await self._catch_up(stage)

    # --- settlement and adoption ----------------------------------------------------------------------------------

    def settled(self, settlement: pb.Settlement) -> None:
        """What has become of a contribution; repeated notices change nothing."""
        if settlement.outcome == pb.HELD:
            if self.uplink.hold(settlement):
                self._tape.settlement(settlement)
                self._tell(HeldBack(settlement.fragment))
        elif settlement.outcome in (pb.MERGED, pb.REFUSED):
            contribution = self.uplink.settle(settlement)
            if contribution is not None:
                self._tape.settlement(settlement)
                self._spawn(self._fetch(contribution, settlement))
        self.on_change()

    def adoption_done(self, index: int) -> None:
        """The training thread has adopted."""
        self.uplink.adopted(index)
        self.on_change()

    async def _fetch(self, contribution: Contribution, settlement: pb.Settlement) -> None:
        """Bring the version a settled contribution leads to, and hand it to the training thread."""
        index = contribution.header.fragment
        fragment = self.uplink.fragments[index]
        version, anchor, stamp, pace = fragment.base_version, fragment.anchor, 0.0, 0.0
        if settlement.version != version:
            anchor, item = await self._pull(index, anchor, version, settlement.version)
            version, stamp, pace = item.version, item.stamp, item.tokens_per_second
        self.uplink.published(index, version, anchor)
        unusable = settlement.outcome == pb.REFUSED and settlement.reason == RefusalReason.NON_FINITE
        self._tell(Adoption(index, version, anchor, contribution.stage, stamp, pace, overwrite=unusable))

    async def _catch_up(self, stage: Stage) -> None:
        """Take the newest version over for a fragment that has not moved; what fails is tried at its next turn."""
        if not self.uplink.may_catch_up(stage):
            return
        old, base = self.uplink.fragments[stage.fragment].anchor, stage.base_version
        try:
            anchor, item = await self._pull_once(stage.fragment, old, base, NEWEST)
        except SynchronizerUnavailable:
            return  # or there is nothing newer
        except (DigestMismatch, WireError) as error:
            if isinstance(error, DigestMismatch):
                self._account.mismatched()
            elif error.reason is not Reason.UNKNOWN_VERSION:
                self._patience.refused(error)
            anchor, item = await self._pull(stage.fragment, None, base, NEWEST)
        if not self.uplink.may_catch_up(stage) or item.version <= base:
            return
        self.uplink.catch_up(stage.fragment, item.version, anchor)
        self._tell(Answered(stage.fragment))
        stage = replace(stage, values=old)
        self._tell(Adoption(stage.fragment, item.version, anchor, stage, item.stamp, item.tokens_per_second))

    async def _pull(self, index: int, anchor: Tensor | None, have: int, want: int) -> tuple[Tensor, PullItem]:
        """The anchor of version `want` by deltas, else (or with no anchor) the newest, raw; until it is right."""
        raw, attempt, wrong_digests = anchor is None, 0, 0
        while True:
            try:
                return await self._pull_once(index, None if raw else anchor, have, NEWEST if raw else want)
            except SynchronizerUnavailable:
                await self._patience.pause(attempt)
                attempt += 1
            except DigestMismatch as error:
                self._account.mismatched()
                wrong_digests += 1
                if wrong_digests > _MOST_WRONG_DIGESTS:
                    raise Refused(Reason.BAD_CHECKSUM, f"{error}, {wrong_digests} times in a row") from error
                raw = True
            except Refused as error:
                if error.reason is not Reason.UNKNOWN_VERSION or raw:
                    self._patience.refused(error)
                raw = True
            except WireError as error:
                self._patience.refused(error)

    async def _pull_once(self, index: int, anchor: Tensor | None, have: int, want: int) -> tuple[Tensor, PullItem]:
        request = pb.PullRequest(
            index=self._identity.index,
            incarnation=self._identity.incarnation,
            fragment=index,
            raw=anchor is None,
            have_version=have,
            want_version=want,
        )
        last: PullItem | None = None
        numel = self._layout.fragments[index].numel
        async with aclosing(self._client.pull(request)) as items:
            async for item in items:
                self._patience.heard()
                self._account.received(memoryview(item.payload).nbytes)
                anchor = await self._work(self._downlink.apply, anchor, item, numel)
                last = item
        if anchor is None or last is None:
            raise SynchronizerUnavailable(f"the pull of fragment {index} brought nothing")
        return anchor, last

    async def _work(self, function: Callable[..., _T], *args: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, function, *args)


def _refused(contribution: Contribution, error: Refused) -> pb.Settlement:
    """A refusal of the call itself, as the settlement it amounts to."""
    header = contribution.header
    return pb.Settlement(
        fragment=header.fragment,
        sequence=header.sequence,
        outcome=pb.REFUSED,
        version=header.base_version,
        reason=error.reason.value,
    )
