"""A payload in pieces: cut into chunks by the sender, put together and checked by the receiver.

The sender copies nothing but the chunk under way; the receiver allocates the declared size once, after the caller has
found that size plausible. Which sizes are, `gate` decides.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Self, TypeAlias

from diloco_trainer.wire.errors import Reason, Refused
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import CHUNK_BYTES

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes. A uint8 tensor gives one by `memoryview(tensor.numpy())`."""


def checksum(payload: Buffer) -> bytes:
    """sha256 of a payload, as headers carry it."""
    return sha256(payload).digest()


def sealed(header: pb.ContributionHeader, payload: Buffer) -> pb.ContributionHeader:
    """A copy of `header` with size and checksum of `payload` filled in; resends use the same copy."""
    copy = pb.ContributionHeader()
    copy.CopyFrom(header)
    copy.size_bytes = memoryview(payload).nbytes
    copy.checksum = checksum(payload)
    return copy


def split(payload: Buffer) -> Iterator[memoryview]:
    """Slices of at most CHUNK_BYTES bytes, in order, none for an empty payload."""
    view = memoryview(payload).cast("B")
    for start in range(0, view.nbytes, CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


class Assembler:
    """Puts a payload of a declared size together. Errors are `Refused` with the reason in the protocol's words.

    Leaving its `with` block frees what was not finished, whoever still holds the assembler (a traceback does).
    """

    def __init__(self, size_bytes: int, expected_checksum: bytes) -> None:
        self._body = bytearray(size_bytes)
        self._filled = 0
        self._hash = sha256()
        self._expected = expected_checksum

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._body = bytearray()

    def add(self, chunk: bytes) -> None:
        """Append the next chunk."""
        end = self._filled + len(chunk)
        if not chunk or end > len(self._body):
            what = f"{end} bytes of a payload declared as {len(self._body)}" if chunk else "an empty chunk"
            raise Refused(Reason.WRONG_SIZE, f"got {what}")
        self._body[self._filled : end] = chunk
        self._hash.update(chunk)
        self._filled = end

    @property
    def missing_bytes(self) -> int:
        return len(self._body) - self._filled

    def finish(self) -> bytearray:
        """The whole payload, its checksum right."""
        if self.missing_bytes:
            raise Refused(Reason.TRUNCATED, f"{self._filled} of {len(self._body)} bytes came")
        if self._hash.digest() != self._expected:
            raise Refused(Reason.BAD_CHECKSUM, "the payload is not what its sender took the sha256 of; send it again")
        return self._body
