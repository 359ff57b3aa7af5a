"""The Synchronizer's door: a gRPC server that authenticates, checks, assembles, and calls a `SynchronizerBackend`.

A refused or broken call costs nobody else anything: a body gets memory only once its header fits, one upload per
(incarnation, fragment) at a time, and a sender that stops in the middle is given up. Decides nothing about training.
"""
# ruff: noqa: N802 - methods of the servicer are called what the protocol calls them

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import grpc

from diloco_api.timeouts import Timeouts
from diloco_api.tokens import Identity
from diloco_trainer.wire.chunks import Assembler, split
from diloco_trainer.wire.errors import (
    STATUS_OF,
    PortInUse,
    Reason,
    Refused,
    SynchronizerUnavailable,
    WireError,
    refusal_of,
)
from diloco_trainer.wire.gate import Gate
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.gen import synchronizer_pb2_grpc as rpc
from diloco_trainer.wire.protocol import (
    AUTHORIZATION_KEY,
    CONTINUE_KEY,
    REFUSAL_KEY,
    SERVER_OPTIONS,
    is_loopback,
    listening_socket,
)
from diloco_trainer.wire.service import PullItem, SynchronizerBackend
from diloco_trainer.wire.tls import Credentials, common_name, server_credentials

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
OnTransfer: TypeAlias = Callable[[str, int, int, float], None]
"""Direction (up or down), index, incarnation, seconds."""
_UploadKey: TypeAlias = tuple[int, int, int]  # index, incarnation, fragment


class RunningServer:
    """A server that is being served; `port` is the one bound."""

    def __init__(self, server: grpc.aio.Server, port: int) -> None:
        self._server = server
        self.port = port

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Take no more calls, break off what has not ended within the grace, release the port."""
        await self._server.stop(grace_seconds)


async def serve(
    backend: SynchronizerBackend,
    *,
    host: str,
    port: int,
    key: bytes,
    job_uid: str,
    tls: Credentials | None = None,
    idle_seconds: float = 2 * Timeouts().transfer_idle_seconds,
    on_transfer: OnTransfer = lambda *_: None,
) -> RunningServer:
    """Serve `backend` on `host:port` (0: any free port). Without TLS on a loopback address only.

    With `tls`, callers need a certificate of the incarnation whose token they carry. A sender of payload silent for
    `idle_seconds` is given up. `on_transfer` hears of every payload that went through.

    Raises PortInUse when the address cannot be bound, OSError when the files of `tls`
    cannot be read.
    """
    if tls is None and not is_loopback(host):
        raise ValueError(f"{host}: without TLS the Synchronizer binds loopback addresses only")
    server = grpc.aio.server(options=SERVER_OPTIONS)
    servicer = _Servicer(backend, Gate(key, job_uid), idle_seconds, on_transfer, with_certificates=tls is not None)
    rpc.add_SynchronizerServicer_to_server(servicer, server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, server_credentials(tls))
    except RuntimeError as error:
        raise PortInUse(f"synchronizer port {address}: {why_not_bound(host, port)}") from error
    await server.start()
    return RunningServer(server, bound)


def why_not_bound(host: str, port: int) -> str:
    """The operating system's reason why an address cannot be bound; gRPC does not tell."""
    try:
        listening_socket(host.strip("[]"), port).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)  # a name that does not resolve has no errno
    return "cannot be bound"


class _Servicer(rpc.SynchronizerServicer):
    def __init__(
        self,
        backend: SynchronizerBackend,
        gate: Gate,
        idle_seconds: float,
        on_transfer: OnTransfer,
        *,
        with_certificates: bool,
    ) -> None:
        self._backend = backend
        self._gate = gate
        self._with_certificates = with_certificates
        self._idle_seconds = idle_seconds
        self._on_transfer = on_transfer
        self._uploads: dict[_UploadKey, asyncio.Timeout] = {}
        self._locks: WeakValueDictionary[_UploadKey, asyncio.Lock] = WeakValueDictionary()  # kept by who uses them

    async def Join(self, request: pb.JoinRequest, context: _Context) -> pb.JoinReply:
        async with _refusing(context):
            self._gate.join(self._identify(context), request)
            return await self._backend.join(request)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: _Context) -> pb.HeartbeatReply:
        async with _refusing(context):
            self._gate.speaker(self._identify(context), request.index, request.incarnation)
            return await self._backend.heartbeat(request)

    async def Turns(self, request: pb.TurnsRequest, context: _Context) -> AsyncGenerator[pb.Notice, None]:
        async with _refusing(context), aclosing(self._backend.turns(self._identify(context))) as notices:
            async for notice in notices:
                yield notice

    async def LeaseWork(self, request: pb.LeaseRequest, context: _Context) -> pb.LeaseReply:
        async with _refusing(context):
            self._gate.speaker(self._identify(context), request.index, request.incarnation)
            return await self._backend.lease(request)

    async def Contribute(
        self, request_iterator: AsyncIterator[pb.ContributionPart], context: _Context
    ) -> pb.ContributionReply:
        async with _refusing(context):
            identity = self._identify(context)
            return pb.ContributionReply(settlement=await self._contribution(identity, request_iterator, context))

    async def Pull(self, request: pb.PullRequest, context: _Context) -> AsyncGenerator[pb.PullPart, None]:
        async with _refusing(context):
            self._gate.speaker(self._identify(context), request.index, request.incarnation)
            items = await self._backend.pull(request)
            begun = time.monotonic()
            for items_left, item in zip(range(len(items) - 1, -1, -1), items, strict=True):
                yield pb.PullPart(header=_pull_header(item, items_left))
                for chunk in split(item.payload):
                    yield pb.PullPart(chunk=bytes(chunk))
            if items:
                self._on_transfer("down", request.index, request.incarnation, time.monotonic() - begun)

    async def Leave(self, request: pb.LeaveRequest, context: _Context) -> pb.LeaveReply:
        async with _refusing(context):
            self._gate.leave(self._identify(context), request)
            await self._backend.leave(request)
            return pb.LeaveReply()

    def _identify(self, context: _Context) -> Identity:
        values = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION_KEY]
        only = values[0] if len(values) == 1 else None
        identity = self._gate.identify(only if isinstance(only, str) else None)
        if self._with_certificates:
            self._gate.holder(identity, common_name(context.auth_context()))
        return identity

    async def _contribution(
        self, identity: Identity, parts: AsyncIterator[pb.ContributionPart], context: _Context
    ) -> pb.Settlement:
        async with self._patience() as timer:
            header = await _first(parts)
            self._gate.header(identity, header, self._backend)
            known = await self._backend.offer(header)
            if known is not None:
                return known
            await context.send_initial_metadata(((CONTINUE_KEY, "1"),))
            async with self._only_upload((header.index, header.incarnation, header.fragment), timer):
                payload = await self._body(header, parts, timer)
        return await self._backend.contribute(header, payload)

    async def _body(
        self, header: pb.ContributionHeader, parts: AsyncIterator[pb.ContributionPart], timer: asyncio.Timeout
    ) -> bytearray:
        loop = asyncio.get_running_loop()
        if header.nothing:
            return bytearray()
        begun = loop.time()
        with Assembler(header.size_bytes, header.checksum) as body:
            async for part in parts:
                if part.WhichOneof("part") != "chunk":
                    raise Refused(Reason.BAD_HEADER, "after the header come chunks only")
                body.add(part.chunk)
                timer.reschedule(loop.time() + self._idle_seconds)
            payload = body.finish()
        self._on_transfer("up", header.index, header.incarnation, loop.time() - begun)
        return payload

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[asyncio.Timeout]:
        """Gives a sender up once the timer, put forward by every chunk, has run out."""
        try:
            async with asyncio.timeout(self._idle_seconds) as timer:
                yield timer
        except TimeoutError as error:
            raise SynchronizerUnavailable("no chunk came for too long, or the same contribution came anew") from error

    @asynccontextmanager
    async def _only_upload(self, key: _UploadKey, timer: asyncio.Timeout) -> AsyncIterator[None]:
        """One upload per key: a newer one is a resend after a broken connection, so the older one ends first."""
        older = self._uploads.get(key)
        if older is not None and not older.expired():
            older.reschedule(asyncio.get_running_loop().time())
        self._uploads[key] = timer
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if self._uploads.get(key) is timer:
                del self._uploads[key]


@asynccontextmanager
async def _refusing(context: _Context) -> AsyncIterator[None]:
    """Turns a WireError into a status and its `Refusal`."""
    try:
        yield
    except WireError as error:
        refusal = ((REFUSAL_KEY, refusal_of(error).SerializeToString()),)
        await context.abort(STATUS_OF[error.reason], error.message, refusal)


async def _first(parts: AsyncIterator[pb.ContributionPart]) -> pb.ContributionHeader:
    async for part in parts:
        if part.WhichOneof("part") == "header":
            return part.header
        break
    raise Refused(Reason.BAD_HEADER, "a contribution begins with its header")


def _pull_header(item: PullItem, items_left: int) -> pb.PullHeader:
    return pb.PullHeader(
        fragment=item.fragment,
        version=item.version,
        raw=item.raw,
        codec=item.codec,
        size_bytes=memoryview(item.payload).nbytes,
        checksum=item.checksum,
        digest=item.digest,
        items_left=items_left,
        stamp=item.stamp,
        tokens_per_second=item.tokens_per_second,
        stage_step=item.stage_step,
    )
