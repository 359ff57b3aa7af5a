import grpc
import pytest

from diloco_trainer.wire.errors import (
    STATUS_OF,
    Fenced,
    LayoutMismatch,
    ProtocolMismatch,
    Reason,
    Refused,
    SynchronizerFault,
    SynchronizerUnavailable,
    Unauthenticated,
    WireError,
    error_of_refusal,
    error_of_status,
    refusal_of,
)
from diloco_trainer.wire.gen import synchronizer_pb2 as pb

TYPED: list[type[WireError]] = [Fenced, LayoutMismatch, ProtocolMismatch, SynchronizerUnavailable, Unauthenticated]


def test_reasons_are_those_of_the_protocol() -> None:
    assert {reason.value for reason in Reason} == set(pb.Refusal.Reason.keys())


def test_every_reason_has_a_status_that_is_a_failure() -> None:
    assert set(STATUS_OF) == set(Reason)
    assert grpc.StatusCode.OK not in STATUS_OF.values()


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_comes_back_as_the_error_it_was(reason: Reason) -> None:
    types = {error.reason: error for error in TYPED}
    sent = types[reason]("why") if reason in types else Refused(reason, "why")
    got = error_of_refusal(refusal_of(sent))
    assert (type(got), got.reason, got.message) == (type(sent), reason, "why")


def test_a_reason_of_a_newer_synchronizer_is_a_refusal_all_the_same() -> None:
    refusal = pb.Refusal.FromString(b"\x08\x63\x12\x03why")  # reason 99
    got = error_of_refusal(refusal)
    assert (type(got), got.reason, got.message) == (Refused, Reason.REASON_UNSPECIFIED, "why")


def test_a_message_is_one_line() -> None:
    assert Fenced("a\n  b\tc ").message == "a b c"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, SynchronizerUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, SynchronizerUnavailable),
        (grpc.StatusCode.CANCELLED, SynchronizerUnavailable),
        (grpc.StatusCode.INTERNAL, SynchronizerUnavailable),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolMismatch),
        (grpc.StatusCode.UNKNOWN, SynchronizerFault),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, SynchronizerFault),
    ],
)
def test_a_status_of_grpc_itself_is_unavailability_or_a_fault(code: grpc.StatusCode, expected: type[WireError]) -> None:
    assert type(error_of_status(code, "details")) is expected
