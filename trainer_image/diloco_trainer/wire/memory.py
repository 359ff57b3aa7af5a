"""A `Synchronizer` in the same process: a backend behind the same gate, without sockets.

For tests and trajectories. Messages are copied at the seam as if they had travelled; nothing is retried.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import Message

from diloco_trainer.wire.chunks import Assembler, Buffer, split
from diloco_trainer.wire.errors import SynchronizerUnavailable
from diloco_trainer.wire.gate import Gate
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import BEARER
from diloco_trainer.wire.service import PullItem, SynchronizerBackend

_M = TypeVar("_M", bound=Message)


class MemorySynchronizer:
    """What `client.SynchronizerClient` is over gRPC, for one incarnation."""

    def __init__(self, backend: SynchronizerBackend, *, key: bytes, job_uid: str, token: str) -> None:
        self._backend = backend
        self._gate = Gate(key, job_uid)
        self._authorization = BEARER + token

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        self._gate.join(self._gate.identify(self._authorization), request)
        return _copy(await self._backend.join(_copy(request)))

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        self._speaker(request.index, request.incarnation)
        return _copy(await self._backend.heartbeat(_copy(request)))

    async def turns(self) -> AsyncGenerator[pb.Notice, None]:
        identity = self._gate.identify(self._authorization)
        async with aclosing(self._backend.turns(identity)) as notices:
            async for notice in notices:
                yield _copy(notice)
        raise SynchronizerUnavailable("the stream of turns ended")

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply:
        self._speaker(request.index, request.incarnation)
        return _copy(await self._backend.lease(_copy(request)))

    async def contribute(self, header: pb.ContributionHeader, payload: Buffer) -> pb.Settlement:
        header = _copy(header)
        self._gate.header(self._gate.identify(self._authorization), header, self._backend)
        known = await self._backend.offer(header)
        if known is not None:
            return _copy(known)
        body = bytearray()
        if not header.nothing:
            with Assembler(header.size_bytes, header.checksum) as assembler:
                for chunk in split(payload):
                    assembler.add(bytes(chunk))
                body = assembler.finish()
        return _copy(await self._backend.contribute(header, body))

    async def pull(self, request: pb.PullRequest) -> AsyncGenerator[PullItem, None]:
        self._speaker(request.index, request.incarnation)
        for item in await self._backend.pull(_copy(request)):
            yield replace(item, payload=bytearray(item.payload))

    async def leave(self, request: pb.LeaveRequest) -> None:
        self._gate.leave(self._gate.identify(self._authorization), request)
        await self._backend.leave(_copy(request))

    async def close(self) -> None:
        pass

    def _speaker(self, index: int, incarnation: int) -> None:
        self._gate.speaker(self._gate.identify(self._authorization), index, incarnation)


def _copy(message: _M) -> _M:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
