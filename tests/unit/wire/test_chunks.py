from collections.abc import Iterable
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_trainer.wire import chunks
from diloco_trainer.wire.chunks import Assembler, checksum, sealed, split
from diloco_trainer.wire.errors import Reason, Refused
from diloco_trainer.wire.gen import synchronizer_pb2 as pb


def assemble(pieces: Iterable[bytes], body: Assembler) -> bytearray:
    for piece in pieces:
        body.add(piece)
    return body.finish()


@settings(max_examples=50, deadline=None)
@given(payload=st.binary(max_size=5000), chunk_bytes=st.integers(1, 1500))
def test_what_is_split_is_assembled_again(payload: bytes, chunk_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
        pieces = list(split(payload))
    assert all(0 < piece.nbytes <= chunk_bytes for piece in pieces)
    assert assemble(map(bytes, pieces), Assembler(len(payload), sha256(payload).digest())) == payload


def test_splitting_copies_nothing() -> None:
    payload = bytearray(10)
    (piece,) = split(payload)
    payload[3] = 7
    assert piece[3] == 7


def test_wider_elements_are_split_as_bytes() -> None:
    assert b"".join(split(memoryview(b"abcdefgh").cast("i"))) == b"abcdefgh"


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([b"ab", b"c"], Reason.TRUNCATED),
        ([b"abcde"], Reason.WRONG_SIZE),
        ([b"abcd", b"e"], Reason.WRONG_SIZE),
        ([b"ab", b""], Reason.WRONG_SIZE),
        ([b"abce"], Reason.BAD_CHECKSUM),
    ],
)
def test_a_body_that_is_not_the_declared_one_is_refused(pieces: list[bytes], reason: Reason) -> None:
    with pytest.raises(Refused) as caught:
        assemble(pieces, Assembler(4, checksum(b"abcd")))
    assert caught.value.reason is reason


def test_sealing_fills_in_size_and_checksum_of_a_copy() -> None:
    plain = pb.ContributionHeader(fragment=3)
    done = sealed(plain, memoryview(b"abcdefgh").cast("i"))
    assert (done.fragment, done.size_bytes, done.checksum) == (3, 8, sha256(b"abcdefgh").digest())
    assert plain == pb.ContributionHeader(fragment=3)
