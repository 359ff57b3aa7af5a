"""The two sides of the seam as Python sees it, whatever carries the calls.

`Synchronizer` is what a Learner holds: `client.SynchronizerClient` over gRPC or `memory.MemorySynchronizer` in the
same process. `SynchronizerBackend` is what the Synchronizer's engine offers to the server behind it. Both speak the
protocol's own messages; dataclasses only where a message would drag payload along. No behaviour here.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from diloco_api.tokens import Identity
from diloco_trainer.wire.chunks import Buffer
from diloco_trainer.wire.gen import synchronizer_pb2 as pb


@dataclass(frozen=True, slots=True)
class BodyExpectation:
    """What a contribution of one fragment must look like; anything else is refused before memory is spent on it."""

    epoch: int
    size_bytes: int
    codec: str
    shape_digest: str  # hex digest of the fragment


@dataclass(frozen=True, slots=True)
class PullItem:
    """One step of a pull: a published delta, or the anchor itself."""

    fragment: int
    version: int  # after applying this item
    raw: bool  # the anchor (fp32, little-endian), not a delta
    codec: str
    payload: Buffer
    checksum: bytes  # sha256 of the payload
    digest: str  # hex digest of the anchor of `version`
    stamp: float  # share of the budget trained when the version was published
    tokens_per_second: float  # of the whole job at that time
    stage_step: int  # synchronous presets: step of the version


class SynchronizerBackend(Protocol):
    """The Synchronizer behind its door. Methods raise `WireError`s; that is their way to refuse.

    Callers are authenticated: index, incarnation and job of every message are those of its token. Whether that
    incarnation is admitted, fenced or too late is for the backend to say. All methods run on the server's event loop
    and must not block it. A caller may vanish: its method is then cancelled, which must leave the engine sound.
    """

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Admit an incarnation; returns once that is durable. The protocol version was checked."""
        ...

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply: ...

    def turns(self, identity: Identity) -> AsyncGenerator[pb.Notice, None]:
        """Notices for one incarnation, beginning with the present phase; ends when the Synchronizer does."""
        ...

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply: ...

    def expectation(self, fragment: int) -> BodyExpectation:
        """Raises Refused(UNKNOWN_FRAGMENT)."""
        ...

    async def offer(self, header: pb.ContributionHeader) -> pb.Settlement | None:
        """Asked before the body is read: None to read it, or what is already known of this contribution.

        Refuse here what needs no body to be refused (not admitted, fenced, beyond the lease).
        """
        ...

    async def contribute(self, header: pb.ContributionHeader, payload: bytearray) -> pb.Settlement:
        """Take a whole body (`payload` is the backend's to keep; empty when `header.nothing`).

        Size, codec, shape, epoch and checksum are right. The same header may come twice, also at the same time.
        """
        ...

    async def pull(self, request: pb.PullRequest) -> list[PullItem]:
        """The items in the order they are applied. Payloads are only read, and must not change while being sent.

        Raises Refused(UNKNOWN_FRAGMENT | UNKNOWN_VERSION): not published, or no longer retained (pull raw then).
        """
        ...

    async def leave(self, request: pb.LeaveRequest) -> None: ...


class Synchronizer(Protocol):
    """The Synchronizer as one incarnation of a Learner sees it. Every method may raise any `WireError`."""

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply: ...

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """One attempt, no repetition: the next heartbeat says more."""
        ...

    def turns(self) -> AsyncGenerator[pb.Notice, None]:
        """Notices, beginning with the present phase. Raises SynchronizerUnavailable when the stream breaks or ends:
        subscribe again, then send open contributions again.
        """
        ...

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply: ...

    async def contribute(self, header: pb.ContributionHeader, payload: Buffer) -> pb.Settlement:
        """Send a sealed header (`chunks.sealed`) and its body; the body is only read."""
        ...

    def pull(self, request: pb.PullRequest) -> AsyncGenerator[PullItem, None]:
        """Items as they arrive, each with the right checksum; the payload is the caller's to keep."""
        ...

    async def leave(self, request: pb.LeaveRequest) -> None: ...

    async def close(self) -> None:
        """Break off what is under way; the object is of no use afterwards."""
        ...
