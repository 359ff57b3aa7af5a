"""The Learner's end: a `Synchronizer` over gRPC on two connections, one for payload and one for everything else.

Every call has a deadline: a fixed one without payload, an idle one with. Calls that may be repeated are, with jittered
back-off, as long as the Synchronizer is merely unavailable; a refusal is raised at once. How long the Synchronizer may
stay unheard, and what a Learner does about it, is the caller's business.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc

from diloco_api.timeouts import Timeouts
from diloco_trainer.wire.backoff import backoff_seconds
from diloco_trainer.wire.chunks import Assembler, Buffer, split
from diloco_trainer.wire.errors import (
    Refused,
    SynchronizerFault,
    SynchronizerUnavailable,
    error_of_refusal,
    error_of_status,
    refusal_in,
)
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.gen import synchronizer_pb2_grpc as rpc
from diloco_trainer.wire.link import Link
from diloco_trainer.wire.protocol import AUTHORIZATION_KEY, BEARER, CONTINUE_KEY
from diloco_trainer.wire.reach import Reachability
from diloco_trainer.wire.service import PullItem
from diloco_trainer.wire.tls import ClientTls

_CONNECTION_LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


class SynchronizerClient:
    """One incarnation's view of the Synchronizer. Use it from one event loop; end it with `close`."""

    def __init__(
        self,
        addresses: Path,
        token: str,
        *,
        rng: random.Random,
        timeouts: Timeouts,
        tls: ClientTls | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`addresses` is the file with one host:port a line, read again before each new connection.

        A call that may be repeated is, for `call_retry_seconds`, before SynchronizerUnavailable is raised. Without
        TLS: loopback only.
        """
        self._control = Link(addresses, tls)
        self._bulk = Link(addresses, tls)
        self._reach = Reachability(addresses, tls) if tls is not None else None
        self._metadata = ((AUTHORIZATION_KEY, BEARER + token),)
        self._rng = rng
        self._timeouts = timeouts
        self._clock = clock
        self._sleep = sleep
        self._closed = False

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Raises CertificateRefused when the two ends have never trusted each other and will not."""
        reply = await self._repeated(lambda: self._knock(request))
        if self._reach is not None:
            self._reach.reached()
        return reply

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """One attempt within the heartbeat's own deadline; why it failed is found out beside it."""
        try:
            reply = await self._short(lambda stub: stub.Heartbeat, request, self._timeouts.heartbeat_timeout_seconds)
        except SynchronizerUnavailable:
            if self._reach is not None and not self._closed:
                self._reach.missed()
            raise
        if self._reach is not None:
            self._reach.reached()
        return reply

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply:
        return await self._repeated(lambda: self._short(lambda stub: stub.LeaseWork, request))

    async def leave(self, request: pb.LeaveRequest) -> None:
        await self._repeated(lambda: self._short(lambda stub: stub.Leave, request))

    async def turns(self) -> AsyncGenerator[pb.Notice, None]:
        """Notices until the stream breaks; the first must come within the deadline of a call."""
        stub = self._control.stub()
        call = stub.Turns(pb.TurnsRequest(), metadata=self._metadata)
        try:
            async with self._translated(self._control, stub):
                seconds: float | None = self._timeouts.rpc_timeout_seconds
                notices = aiter(call)
                while (notice := await _next(notices, seconds)) is not None:
                    seconds = None
                    yield notice
        finally:
            call.cancel()
        raise SynchronizerUnavailable("the stream of turns ended")

    async def contribute(self, header: pb.ContributionHeader, payload: Buffer) -> pb.Settlement:
        """Send a sealed header and its body, both verbatim at every repetition."""
        return await self._repeated(lambda: self._send(header, payload))

    async def pull(self, request: pb.PullRequest) -> AsyncGenerator[PullItem, None]:
        """Items as they arrive; after a broken stream it goes on behind the last whole item."""
        rest = pb.PullRequest()
        rest.CopyFrom(request)
        attempt, give_up_at = 0, self._clock() + self._timeouts.call_retry_seconds
        while True:
            try:
                async with aclosing(self._receive(rest)) as items:
                    async for item, items_left in items:
                        yield item
                        if items_left == 0:
                            return
                        rest.have_version = item.version
                        attempt, give_up_at = 0, self._clock() + self._timeouts.call_retry_seconds
                return
            except SynchronizerUnavailable as error:
                await self._back_off(error, attempt, give_up_at)
                attempt += 1

    async def close(self) -> None:
        """Calls under way end with SynchronizerUnavailable."""
        self._closed = True
        if self._reach is not None:
            await self._reach.close()
        await self._control.close()
        await self._bulk.close()

    async def _knock(self, request: pb.JoinRequest) -> pb.JoinReply:
        """One attempt to join; its failure says why the Synchronizer was not reached."""
        try:
            return await self._short(lambda stub: stub.Join, request)
        except SynchronizerUnavailable as error:
            if self._reach is None:
                raise
            raise await self._reach.explain(error) from error

    async def _short(
        self,
        method: "Callable[[rpc.SynchronizerAsyncStub], grpc.aio.UnaryUnaryMultiCallable[_Request, _Reply]]",
        request: _Request,
        seconds: float | None = None,
    ) -> _Reply:
        """One attempt of a call without payload."""
        stub = self._control.stub()
        async with self._translated(self._control, stub):
            timeout = self._timeouts.rpc_timeout_seconds if seconds is None else seconds
            return await method(stub)(request, timeout=timeout, metadata=self._metadata)

    async def _send(self, header: pb.ContributionHeader, payload: Buffer) -> pb.Settlement:
        loop = asyncio.get_running_loop()
        stub = self._bulk.stub()
        async with self._translated(self._bulk, stub), asyncio.timeout(self._timeouts.transfer_idle_seconds) as timer:

            async def parts() -> AsyncIterator[pb.ContributionPart]:
                yield pb.ContributionPart(header=header)
                if CONTINUE_KEY not in await call.initial_metadata():
                    await call.code()  # refused or known already: the end is on its way
                    return
                for chunk in split(payload):
                    yield pb.ContributionPart(chunk=bytes(chunk))
                    if not call.done() and not timer.expired():
                        timer.reschedule(loop.time() + self._timeouts.transfer_idle_seconds)

            call = stub.Contribute(parts(), metadata=self._metadata)
            reply = await call
        return reply.settlement

    async def _receive(self, request: pb.PullRequest) -> AsyncGenerator[tuple[PullItem, int], None]:
        """One attempt: whole items, each with the number of those that follow it."""
        stub = self._bulk.stub()
        call = stub.Pull(request, metadata=self._metadata)
        try:
            async with self._translated(self._bulk, stub):
                parts = aiter(call)
                while (part := await _next(parts, self._timeouts.transfer_idle_seconds)) is not None:
                    yield await self._item(part.header, parts), part.header.items_left
        finally:
            call.cancel()

    async def _item(self, header: pb.PullHeader, parts: AsyncIterator[pb.PullPart]) -> PullItem:
        try:
            with Assembler(header.size_bytes, header.checksum) as body:
                while (
                    body.missing_bytes
                    and (part := await _next(parts, self._timeouts.transfer_idle_seconds)) is not None
                ):
                    body.add(part.chunk)
                payload = body.finish()
        except Refused as error:
            raise SynchronizerFault(f"pull of fragment {header.fragment}: {error.message}") from error
        return PullItem(
            fragment=header.fragment,
            version=header.version,
            raw=header.raw,
            codec=header.codec,
            payload=payload,
            checksum=header.checksum,
            digest=header.digest,
            stamp=header.stamp,
            tokens_per_second=header.tokens_per_second,
            stage_step=header.stage_step,
        )

    async def _repeated(self, attempt_call: Callable[[], Awaitable[_Reply]]) -> _Reply:
        """Repeat an idempotent call while the Synchronizer is unavailable."""
        attempt, give_up_at = 0, self._clock() + self._timeouts.call_retry_seconds
        while True:
            try:
                return await attempt_call()
            except SynchronizerUnavailable as error:
                await self._back_off(error, attempt, give_up_at)
                attempt += 1

    async def _back_off(self, error: SynchronizerUnavailable, attempt: int, give_up_at: float) -> None:
        """Wait before the next attempt; raises `error` when time is up."""
        seconds = backoff_seconds(attempt, self._rng)
        if self._closed or self._clock() + seconds > give_up_at:
            raise error
        await self._sleep(seconds)

    @asynccontextmanager
    async def _translated(self, link: Link, stub: "rpc.SynchronizerAsyncStub") -> AsyncIterator[None]:
        """gRPC's errors become WireErrors; a connection that failed is not used again."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            refusal = refusal_in(error)
            if refusal is not None:
                raise error_of_refusal(refusal) from error
            if error.code() in _CONNECTION_LOST:
                await link.drop(stub)
            raise error_of_status(error.code(), error.details() or "no details") from error
        except TimeoutError as error:
            await link.drop(stub)
            raise SynchronizerUnavailable("nothing came from the Synchronizer within the deadline") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise SynchronizerUnavailable("the connection was given up") from error


async def _next(messages: AsyncIterator[_Reply], seconds: float | None) -> _Reply | None:
    """The next message of a stream, None at its end; TimeoutError when it takes longer than `seconds`."""
    async with asyncio.timeout(seconds):
        return await anext(messages, None)
