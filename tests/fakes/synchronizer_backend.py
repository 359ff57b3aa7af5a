"""A `SynchronizerBackend` without an engine: admits, remembers what it was given, refuses what a test asks it to."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from diloco_api.tokens import Identity
from diloco_trainer.wire.chunks import checksum, sealed
from diloco_trainer.wire.errors import Fenced, LayoutMismatch, Reason, Refused, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import PROTOCOL_VERSION
from diloco_trainer.wire.service import BodyExpectation, PullItem

KEY = bytes(range(32))
JOB = "0a1b2c3d-0000-4000-8000-000000000000"
EPOCH = 7
LAYOUT = "ab" * 32
MIB = 1024 * 1024
SIZES = {0: 1000, 1: 5 * MIB}
"""Bytes of a body by fragment: less than a chunk, and two chunks and a half."""
RETAINED = range(3, 6)
"""Versions whose deltas can be pulled; 2 is the oldest base."""


def payload_of(fragment: int, seed: int = 0) -> bytes:
    return bytes((seed + position) % 251 for position in range(1000)) * (SIZES[fragment] // 1000) + bytes(
        SIZES[fragment] % 1000
    )


def join_request(index: int = 0, incarnation: int = 0) -> pb.JoinRequest:
    return pb.JoinRequest(
        protocol_version=PROTOCOL_VERSION,
        job_uid=JOB,
        index=index,
        incarnation=incarnation,
        site="here",
        layout_digest=LAYOUT,
    )


def header(payload: bytes, *, index: int = 0, incarnation: int = 0, fragment: int = 0) -> pb.ContributionHeader:
    """A good header, sealed."""
    plain = pb.ContributionHeader(
        job_uid=JOB,
        epoch=EPOCH,
        index=index,
        incarnation=incarnation,
        fragment=fragment,
        turn=1,
        base_version=5,
        sequence=1,
        stage_step=24,
        token_clock=4800,
        c_tokens=4800,
        c_steps=24,
        codec="int8",
        shape_digest=f"shape-{fragment}",
    )
    return sealed(plain, payload)


def delta(fragment: int, version: int, *, raw: bool = False) -> PullItem:
    payload = payload_of(fragment, version)
    return PullItem(
        fragment=fragment,
        version=version,
        raw=raw,
        codec="fp32" if raw else "int8",
        payload=payload,
        checksum=checksum(payload),
        digest=f"anchor-{fragment}-{version}",
        stamp=version / 10,
        tokens_per_second=1000.0,
        stage_step=version * 24,
    )


@dataclass
class FakeBackend:
    """Counts calls by name; `failures[name]` is raised by the next calls of that name, one error a call."""

    newest: dict[int, int] = field(default_factory=dict)
    bodies: dict[tuple[int, int, int, int], bytes] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[WireError]] = field(default_factory=dict)
    heartbeats: list[pb.HeartbeatRequest] = field(default_factory=list)
    left: list[pb.LeaveRequest] = field(default_factory=list)
    subscribers: list[tuple[Identity, asyncio.Queue[pb.Notice | None]]] = field(default_factory=list)
    hold: asyncio.Event | None = None
    """While set to an unset event, heartbeats wait for it."""
    waiting: int = 0

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        self._called("join")
        if request.layout_digest != LAYOUT:
            raise LayoutMismatch("the Learner built other parameters than the Synchronizer")
        if request.incarnation < self.newest.get(request.index, 0):
            raise Fenced(f"learner {request.index} runs as a newer incarnation")
        self.newest[request.index] = request.incarnation
        return pb.JoinReply(epoch=EPOCH, versions=[5] * len(SIZES), heartbeat_seconds=5, started=True)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        self._called("heartbeat")
        self._admitted(request.index, request.incarnation)
        self.heartbeats.append(request)
        if self.hold is not None:
            self.waiting += 1
            try:
                await self.hold.wait()
            finally:
                self.waiting -= 1
        return pb.HeartbeatReply(phase=pb.RUNNING, lease_available=True)

    async def turns(self, identity: Identity) -> AsyncGenerator[pb.Notice, None]:
        self._called("turns")
        self._admitted(identity.index, identity.incarnation)
        entry = (identity, asyncio.Queue[pb.Notice | None]())
        self.subscribers.append(entry)
        try:
            yield pb.Notice(phase=pb.RUNNING)
            while (notice := await entry[1].get()) is not None:
                yield notice
        finally:
            self.subscribers.remove(entry)

    def tell(self, notice: pb.Notice | None) -> None:
        """Tell all subscribers; None ends their streams."""
        for _, queue in self.subscribers:
            queue.put_nowait(notice)

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply:
        self._called("lease")
        self._admitted(request.index, request.incarnation)
        start = request.request_number * 100
        return pb.LeaseReply(ranges=[pb.WorkRange(start=start, stop=start + request.want_sequences)])

    def expectation(self, fragment: int) -> BodyExpectation:
        if fragment not in SIZES:
            raise Refused(Reason.UNKNOWN_FRAGMENT, f"there is no fragment {fragment}, the last is {len(SIZES) - 1}")
        return BodyExpectation(EPOCH, SIZES[fragment], "int8", f"shape-{fragment}")

    async def offer(self, header: pb.ContributionHeader) -> pb.Settlement | None:
        self._called("offer")
        self._admitted(header.index, header.incarnation)
        if header.c_tokens > 1_000_000:
            raise Refused(Reason.BEYOND_LEASE, f"{header.c_tokens} tokens were never leased")
        if _key(header) in self.bodies:
            return _settled(header, pb.MERGED)
        return None

    async def contribute(self, header: pb.ContributionHeader, payload: bytearray) -> pb.Settlement:
        self._called("contribute")
        self.bodies[_key(header)] = bytes(payload)
        return _settled(header, pb.RECEIVED)

    async def pull(self, request: pb.PullRequest) -> list[PullItem]:
        self._called("pull")
        self._admitted(request.index, request.incarnation)
        self.expectation(request.fragment)
        if request.raw:
            return [delta(request.fragment, RETAINED.stop - 1, raw=True)]
        if request.have_version + 1 < RETAINED.start or request.want_version >= RETAINED.stop:
            raise Refused(Reason.UNKNOWN_VERSION, f"fragment {request.fragment}: pull the anchor instead")
        return [delta(request.fragment, v) for v in range(request.have_version + 1, request.want_version + 1)]

    async def leave(self, request: pb.LeaveRequest) -> None:
        self._called("leave")
        self.left.append(request)

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    def _admitted(self, index: int, incarnation: int) -> None:
        newest = self.newest.get(index)
        if newest is not None and incarnation < newest:
            raise Fenced(f"learner {index} runs as a newer incarnation")
        if newest != incarnation:
            raise Refused(Reason.NOT_ADMITTED, f"learner {index} incarnation {incarnation} has not joined")


def _key(header: pb.ContributionHeader) -> tuple[int, int, int, int]:
    return header.index, header.incarnation, header.fragment, header.sequence


def _settled(header: pb.ContributionHeader, outcome: pb.Outcome.ValueType) -> pb.Settlement:
    return pb.Settlement(fragment=header.fragment, sequence=header.sequence, outcome=outcome)
