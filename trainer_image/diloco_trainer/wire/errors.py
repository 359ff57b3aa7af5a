"""What can go wrong between a Learner and the Synchronizer, and how it looks on the wire.

The backend raises these, the server turns them into a gRPC status plus a `Refusal`, the client raises the same type
with the same line again. Errors of gRPC itself become `SynchronizerUnavailable` (try again) or `SynchronizerFault` (its
bug). Nothing is retried here.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import cast

import grpc

from diloco_api.errors import SpecError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import REFUSAL_KEY


class Reason(StrEnum):
    """Members of `Refusal.Reason` of the protocol, by name."""

    REASON_UNSPECIFIED = "REASON_UNSPECIFIED"  # one a newer Synchronizer knows
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FENCED = "FENCED"
    PROTOCOL_MISMATCH = "PROTOCOL_MISMATCH"
    LAYOUT_MISMATCH = "LAYOUT_MISMATCH"
    FOREIGN_JOB = "FOREIGN_JOB"
    EPOCH_MISMATCH = "EPOCH_MISMATCH"
    UNKNOWN_FRAGMENT = "UNKNOWN_FRAGMENT"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    WRONG_CODEC = "WRONG_CODEC"
    WRONG_SIZE = "WRONG_SIZE"
    BAD_CHECKSUM = "BAD_CHECKSUM"
    TRUNCATED = "TRUNCATED"
    NOT_ADMITTED = "NOT_ADMITTED"
    BEYOND_LEASE = "BEYOND_LEASE"
    BAD_HEADER = "BAD_HEADER"
    JOB_ENDED = "JOB_ENDED"
    BUSY = "BUSY"


class WireError(Exception):
    """A call failed; the text is one line a person can act on."""

    reason: Reason

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @property
    def message(self) -> str:
        return str(self)


class SynchronizerUnavailable(WireError):
    """Not reached, not answered in time, or busy. The same call may be made again; nothing was settled."""

    reason = Reason.BUSY


class SynchronizerFault(WireError):
    """The Synchronizer broke down over this call, or answered what no Synchronizer answers: a bug, not a refusal."""

    reason = Reason.REASON_UNSPECIFIED


class ProtocolMismatch(WireError):
    """The two ends speak different versions of the protocol."""

    reason = Reason.PROTOCOL_MISMATCH


class LayoutMismatch(WireError):
    """The two ends have different parameters, shapes or fragments."""

    reason = Reason.LAYOUT_MISMATCH


class Unauthenticated(WireError):
    """No token, one of another job's key, or one of another incarnation than the message speaks of."""

    reason = Reason.UNAUTHENTICATED


class CertificateRefused(WireError):
    """One end does not accept the other's certificate, found out by the Learner; waiting does not mend it."""

    reason = Reason.UNAUTHENTICATED


class Fenced(WireError):
    """A newer incarnation of this index was admitted: end."""

    reason = Reason.FENCED


class Refused(WireError):
    """Anything else the Synchronizer will not do; saying it again changes nothing."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PortInUse(SpecError):
    """An address cannot be bound; the text names it."""


_OF_REASON: dict[Reason, type[WireError]] = {
    error.reason: error
    for error in (SynchronizerUnavailable, ProtocolMismatch, LayoutMismatch, Unauthenticated, Fenced)
}

STATUS_OF: dict[Reason, grpc.StatusCode] = {
    Reason.REASON_UNSPECIFIED: grpc.StatusCode.UNKNOWN,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.FENCED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.PROTOCOL_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.LAYOUT_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.FOREIGN_JOB: grpc.StatusCode.PERMISSION_DENIED,
    Reason.EPOCH_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_FRAGMENT: grpc.StatusCode.NOT_FOUND,
    Reason.UNKNOWN_VERSION: grpc.StatusCode.NOT_FOUND,
    Reason.WRONG_CODEC: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.WRONG_SIZE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.BAD_CHECKSUM: grpc.StatusCode.DATA_LOSS,
    Reason.TRUNCATED: grpc.StatusCode.DATA_LOSS,
    Reason.NOT_ADMITTED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.BEYOND_LEASE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.BAD_HEADER: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.JOB_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.BUSY: grpc.StatusCode.UNAVAILABLE,
}

_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,  # by the other end, while it shuts down
    grpc.StatusCode.INTERNAL,  # a connection reset in the middle of a stream
}


def refusal_of(error: WireError) -> pb.Refusal:
    """The message that carries `error` in the trailing metadata."""
    return pb.Refusal(reason=pb.Refusal.Reason.Value(error.reason.value), message=error.message)


def error_of_refusal(refusal: pb.Refusal) -> WireError:
    """The error a Synchronizer meant by `refusal`."""
    names = pb.Refusal.Reason
    known = refusal.reason in names.values()
    reason = Reason(names.Name(refusal.reason)) if known else Reason.REASON_UNSPECIFIED
    error_type = _OF_REASON.get(reason)
    return error_type(refusal.message) if error_type else Refused(reason, refusal.message)


def error_of_status(code: grpc.StatusCode, details: str) -> WireError:
    """The error behind a status that carries no `Refusal`: gRPC's own, not the Synchronizer's word."""
    text = f"{code.name}: {details}"
    if code in _TRANSIENT:
        return SynchronizerUnavailable(text)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ProtocolMismatch(f"the Synchronizer does not know this call ({details})")
    return SynchronizerFault(text)


def refusal_in(error: grpc.aio.AioRpcError) -> pb.Refusal | None:
    """The Synchronizer's own word in a failed call; None when the failure is gRPC's."""
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in metadata:
        if key == REFUSAL_KEY and isinstance(value, bytes):
            return pb.Refusal.FromString(value)
    return None
