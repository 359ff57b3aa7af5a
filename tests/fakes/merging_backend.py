"""A `SynchronizerBackend` for one Learner: what it sends becomes the next version, unless a test says otherwise.

Everything is fp32 both ways; a merged body moves the published values to what was staged. No log, no rounds.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from diloco_api.tokens import Identity
from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.algorithm.fragments import FragmentLayout
from diloco_trainer.wire.chunks import checksum
from diloco_trainer.wire.errors import Reason, Refused, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.service import BodyExpectation, PullItem

EPOCH = 7


@dataclass
class MergingBackend:
    """Runs on the server's event loop; tests look at it from there too."""

    layout: FragmentLayout
    anchors: list[list[Tensor]]
    """Published values by fragment and version."""
    sequences: int
    """Size of the pool of work."""
    sequences_of_a_pass: int
    heartbeat_seconds: float = 0.05
    outcome: int = pb.MERGED
    """What becomes of a body; RECEIVED leaves it open until `settle`."""
    retained: int = 100
    phase: int = pb.RUNNING
    wrong_digests: int = 0
    """So many pulls from now on carry a wrong digest."""
    granted: int = 0
    answers: dict[int, pb.LeaseReply] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[WireError]] = field(default_factory=dict)
    headers: list[pb.ContributionHeader] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    leases: list[pb.LeaseRequest] = field(default_factory=list)
    heartbeats: list[pb.HeartbeatRequest] = field(default_factory=list)
    left: list[pb.LeaveRequest] = field(default_factory=list)
    pulls: list[pb.PullRequest] = field(default_factory=list)
    subscribers: list["asyncio.Queue[pb.Notice | None]"] = field(default_factory=list)
    settled: dict[tuple[int, int], pb.Settlement] = field(default_factory=dict)

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        self._called("join")
        return pb.JoinReply(
            epoch=EPOCH,
            versions=[len(versions) - 1 for versions in self.anchors],
            heartbeat_seconds=self.heartbeat_seconds,
            started=self.phase != pb.WAITING,
            rejoin=self.calls["join"] > 1,
        )

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        self._called("heartbeat")
        self.heartbeats.append(request)
        return pb.HeartbeatReply(phase=self.phase, lease_available=self.granted < self.sequences)

    async def turns(self, identity: Identity) -> AsyncGenerator[pb.Notice, None]:
        self._called("turns")
        notices: asyncio.Queue[pb.Notice | None] = asyncio.Queue()
        self.subscribers.append(notices)
        try:
            yield pb.Notice(phase=self.phase)
            while (notice := await notices.get()) is not None:
                yield notice
        finally:
            self.subscribers.remove(notices)

    def tell(self, notice: pb.Notice | None) -> None:
        """Tell the Learner; None breaks its stream."""
        for notices in self.subscribers:
            notices.put_nowait(notice)

    def turn(self, number: int, fragment: int, *, closing: bool = False) -> None:
        self.tell(pb.Notice(turn=pb.Turn(number=number, fragment=fragment, closing=closing, interval_seconds=0.1)))

    def become(self, phase: int) -> None:
        self.phase = phase
        self.tell(pb.Notice(phase=phase))

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseReply:
        self._called("lease")
        self.leases.append(request)
        if request.request_number not in self.answers:
            number, start = divmod(self.granted, self.sequences_of_a_pass)
            stop = min(start + request.want_sequences, self.sequences_of_a_pass, start + self.sequences - self.granted)
            self.granted += stop - start
            reply = pb.LeaseReply(exhausted=self.granted >= self.sequences)
            if start < stop:
                reply.ranges.add(start=start, stop=stop, **{"pass": number})
            self.answers[request.request_number] = reply
        return self.answers[request.request_number]

    def expectation(self, fragment: int) -> BodyExpectation:
        part = self.layout.fragments[fragment]
        return BodyExpectation(EPOCH, 4 * part.numel, "fp32", part.digest)

    async def offer(self, header: pb.ContributionHeader) -> pb.Settlement | None:
        self._called("offer")
        return self.settled.get((header.fragment, header.sequence))

    async def contribute(self, header: pb.ContributionHeader, payload: bytearray) -> pb.Settlement:
        self._called("contribute")
        self.headers.append(header)
        self.bodies.append(bytes(payload))
        if header.nothing or self.outcome in (pb.RECEIVED, pb.HELD):
            outcome = pb.RECEIVED if header.nothing else self.outcome
            return pb.Settlement(fragment=header.fragment, sequence=header.sequence, outcome=outcome)
        return self.settle(header, bytes(payload))

    def settle(self, header: pb.ContributionHeader, payload: bytes, *, tell: bool = False) -> pb.Settlement:
        """Merge a body (or refuse it, if that is the outcome) and remember that."""
        versions = self.anchors[header.fragment]
        settlement = pb.Settlement(fragment=header.fragment, sequence=header.sequence, outcome=pb.MERGED)
        if self.outcome == pb.REFUSED:
            settlement.outcome, settlement.reason = pb.REFUSED, "Dropped"
        else:
            versions.append(versions[-1] - torch.frombuffer(bytearray(payload), dtype=torch.float32))
        settlement.version = len(versions) - 1
        self.settled[header.fragment, header.sequence] = settlement
        if tell:
            self.tell(pb.Notice(settlement=settlement))
        return settlement

    async def pull(self, request: pb.PullRequest) -> list[PullItem]:
        self._called("pull")
        self.pulls.append(request)
        versions = self.anchors[request.fragment]
        if request.raw:
            items = [self._item(request.fragment, len(versions) - 1, versions[-1], raw=True)]
        else:
            if request.have_version < len(versions) - 1 - self.retained:
                raise Refused(Reason.UNKNOWN_VERSION, "no longer retained, pull the anchor instead")
            wanted = range(request.have_version + 1, (request.want_version or len(versions) - 1) + 1)
            items = [self._item(request.fragment, v, versions[v] - versions[v - 1], raw=False) for v in wanted]
        if self.wrong_digests:
            self.wrong_digests -= 1
            items = [replace(item, digest="00" * 32) for item in items]
        return items

    async def leave(self, request: pb.LeaveRequest) -> None:
        self._called("leave")
        self.left.append(request)

    def _item(self, fragment: int, version: int, values: Tensor, *, raw: bool) -> PullItem:
        payload = values.numpy().tobytes()
        # A Learner adds the delta to its own anchor: the digest is of what comes out, one rounding included.
        versions = self.anchors[fragment]
        anchor = values if raw else versions[version - 1] + values
        versions[version] = anchor
        digest = anchor_digest(EPOCH, fragment, version, anchor)
        return PullItem(fragment, version, raw, "fp32", payload, checksum(payload), digest, 0.0, 0.0, 0)

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.failures.get(name):
            raise self.failures[name].pop(0)
