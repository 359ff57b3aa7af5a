"""The bytes of one log record: a frame that is either whole or not there.

A frame is `u64 length, u32 crc32` followed by that many bytes: `u64 lsn, u64 synced, u32 meta_length, u32 num_blobs,
num_blobs x u64 blob length`, the metadata (JSON) and the blobs; little-endian. `lsn` numbers records from 1 without
gaps; `synced` is the newest record known to be on disk when the frame was made, so that a reader can tell a torn tail
(cut it) from a rotten middle (stop). This module does no syncing and knows no record kinds.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_PREFIX = struct.Struct("<QI")
_HEAD = struct.Struct("<QQII")
_LENGTH = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview


class LogCorrupt(Exception):
    """Records that were once on disk can no longer be read; the text names file and offset."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One whole record as read back."""

    lsn: int
    meta: bytes
    blobs: tuple[bytes, ...]


def make_frame(lsn: int, synced: int, meta: bytes, blobs: Sequence[Buffer]) -> list[Buffer]:
    """The buffers of one frame in writing order; blobs are not copied."""
    lengths = b"".join(_LENGTH.pack(len(blob)) for blob in blobs)
    head = _HEAD.pack(lsn, synced, len(meta), len(blobs)) + lengths
    crc = zlib.crc32(head)
    crc = zlib.crc32(meta, crc)
    length = len(head) + len(meta)
    for blob in blobs:
        crc = zlib.crc32(blob, crc)
        length += len(blob)
    return [_PREFIX.pack(length, crc) + head + meta, *blobs]


def read_frames(path: Path, first_lsn: int | None) -> Iterator[tuple[Entry, int]]:
    """Whole frames of a segment in order, each with the offset behind it; stops silently at the first one that is not.

    `first_lsn` is the number the first record must have (None: any); a frame with another number is not whole.
    """
    expected = first_lsn
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (found := _read_frame(file, size)) is not None:
            entry, _ = found
            if expected is not None and entry.lsn != expected:
                return
            expected = entry.lsn + 1
            yield entry, file.tell()


def check_tail(path: Path, cut: int, last_lsn: int) -> None:
    """Raise LogCorrupt when a whole frame behind `cut` proves that record `last_lsn + 1` had been synced.

    Only frames reachable by the length of the broken one are looked at: enough for a damaged byte inside a record.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = cut
        while offset + _PREFIX.size <= size:
            file.seek(offset)
            length, _ = _PREFIX.unpack(file.read(_PREFIX.size))
            offset += _PREFIX.size + length
            if length < _HEAD.size or offset > size:
                return
            file.seek(offset)
            found = _read_frame(file, size)
            if found is not None and found[1] > last_lsn:
                raise LogCorrupt(f"{path}: record {last_lsn + 1} at byte {cut} is damaged, and records follow it")


def _read_frame(file: BinaryIO, size: int) -> tuple[Entry, int] | None:
    """The frame at the file's position and its `synced`, or None when no whole frame is there."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return None
    length, crc = _PREFIX.unpack(prefix)
    if length < _HEAD.size or file.tell() + length > size:
        return None
    body = file.read(length)
    if len(body) < length or zlib.crc32(body) != crc:
        return None
    lsn, synced, meta_length, num_blobs = _HEAD.unpack_from(body)
    start = _HEAD.size + num_blobs * _LENGTH.size
    lengths = [_LENGTH.unpack_from(body, _HEAD.size + i * _LENGTH.size)[0] for i in range(num_blobs)]
    meta = body[start : start + meta_length]
    offset = start + meta_length
    blobs = []
    for blob_length in lengths:
        blobs.append(body[offset : offset + blob_length])
        offset += blob_length
    return Entry(lsn, meta, tuple(blobs)), synced
