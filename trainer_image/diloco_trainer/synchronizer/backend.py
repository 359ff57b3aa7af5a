"""The engine as the wire and `Admin` see it: asyncio methods that post a command and await its answer.

Decoding and summing of bodies happens here, on a thread of the loop's pool, so that neither loop nor engine waits for
it. No state, no decisions.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from hashlib import sha256
from typing import TypeVar

from diloco_api.progress import Progress
from diloco_api.tokens import Identity
from diloco_trainer.synchronizer.counter import Inspected, Pulled, inspect
from diloco_trainer.synchronizer.engine import Engine
from diloco_trainer.synchronizer.merge_exec import MergeContext, as_bytes
from diloco_trainer.synchronizer.notices import Subscription
from diloco_trainer.synchronizer.reply import FutureReply
from diloco_trainer.wire.errors import Reason, Refused
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.service import BodyExpectation, PullItem

T = TypeVar("T")
AT_ONCE_BYTES = 1 << 20
"""Work on fewer bytes than this is done on the loop's own thread."""


class EngineBackend:
    """Implements `wire.service.SynchronizerBackend` and `wire.admin.AdminBackend`."""

    def __init__(self, engine: Engine, context: MergeContext) -> None:
        self._engine = engine
        self._context = context
        self._expectations = [
            BodyExpectation(
                epoch=context.epoch,
                size_bytes=context.up.encoded_bytes(fragment.numel),
                codec=context.policy.encode_up.value,
                shape_digest=fragment.digest,
            )
            for fragment in context.layout.fragments
        ]

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        return await self._ask(lambda reply: self._engine.desk.join(request, reply))

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        return await self._ask(lambda reply: self._engine.desk.heartbeat(request, reply))

    async def turns(self, identity: Identity) -> AsyncGenerator[pb.Notice, None]:
        who = (identity.index, identity.incarnation)
        subscription = Subscription()
        try:  # a caller that vanishes while it subscribes must leave no stream behind either
            await self._ask_nothing(lambda reply: self._engine.desk.subscribe(who, subscription, reply))
            async with aclosing(subscription.notices()) as notices:
                async for notice in notices:
                    yield notice
        finally:
            self._engine.post(lambda: self._engine.desk.unsubscribe(who, subscription))

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply:
        return await self._ask(lambda reply: self._engine.desk.lease(request, reply))

    def expectation(self, fragment: int) -> BodyExpectation:
        if not 0 <= fragment < len(self._expectations):
            raise Refused(Reason.UNKNOWN_FRAGMENT, f"there is no fragment {fragment}: {len(self._expectations)} exist")
        return self._expectations[fragment]

    async def offer(self, header: pb.ContributionHeader) -> pb.Settlement | None:
        return await self._ask_maybe(lambda reply: self._engine.counter.offer(header, reply))

    async def contribute(self, header: pb.ContributionHeader, payload: bytearray) -> pb.Settlement:
        inspected: Inspected | None = None
        if not header.nothing:
            inspected = await _off_loop(len(payload), lambda: inspect(self._context, header.fragment, payload))
        return await self._ask(lambda reply: self._engine.counter.contribute(header, inspected, reply))

    async def pull(self, request: pb.PullRequest) -> list[PullItem]:
        pulled: Pulled = await self._ask(lambda reply: self._engine.counter.pull(request, reply))
        if pulled.anchor is None:
            return [
                PullItem(
                    fragment=pulled.fragment,
                    version=item.version.number,
                    raw=False,
                    codec=self._context.policy.encode_down.value,
                    payload=as_bytes(item.delta),
                    checksum=item.checksum,
                    digest=item.version.digest,
                    stamp=item.version.stamp,
                    tokens_per_second=item.version.tokens_per_second,
                    stage_step=item.version.stage_step,
                )
                for item in pulled.deltas
            ]
        payload = as_bytes(pulled.anchor)
        version = pulled.version
        assert version is not None, "an anchor comes with its version"
        return [
            PullItem(
                fragment=pulled.fragment,
                version=version.number,
                raw=True,
                codec="fp32",
                payload=payload,
                checksum=await _off_loop(payload.nbytes, lambda: sha256(payload).digest()),
                digest=version.digest,
                stamp=version.stamp,
                tokens_per_second=version.tokens_per_second,
                stage_step=version.stage_step,
            )
        ]

    async def leave(self, request: pb.LeaveRequest) -> None:
        await self._ask_nothing(lambda reply: self._engine.desk.leave(request, reply))

    async def progress(self) -> Progress:
        return await self._ask(lambda reply: reply.ok(self._engine.progress()))

    async def drain(self) -> None:
        await self._ask_nothing(self._engine.drain)

    async def stop(self) -> None:
        """See `Engine.stop`."""
        await self._ask_nothing(self._engine.stop)

    async def _ask(self, command: Callable[[FutureReply[T]], None]) -> T:
        reply: FutureReply[T] = FutureReply()
        self._engine.post(lambda: command(reply))
        return await reply.future

    async def _ask_maybe(self, command: Callable[[FutureReply[T | None]], None]) -> T | None:
        reply: FutureReply[T | None] = FutureReply()
        self._engine.post(lambda: command(reply))
        return await reply.future

    async def _ask_nothing(self, command: Callable[[FutureReply[None]], None]) -> None:
        reply: FutureReply[None] = FutureReply()
        self._engine.post(lambda: command(reply))
        await reply.future


async def _off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Do `work` on a pool thread when it is long."""
    return work() if num_bytes < AT_ONCE_BYTES else await asyncio.to_thread(work)
