"""The write-ahead log: segments `log-<n>.wal` in the state folder, appended by one thread and synced by another.

`append` only queues; `flush` writes everything queued and syncs it with one fdatasync (group commit), so a record costs
a share of a sync. A record counts once `flush` has returned its number. Opening a log cuts the last segment behind its
last whole record. What the records mean is `records`' business.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diloco_trainer.synchronizer.frames import Buffer, Entry, LogCorrupt, check_tail, make_frame, read_frames

_SEGMENT = re.compile(r"log-(\d{8})\.wal")
_BUFFERS_PER_WRITE = 512


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"log-{number:08d}.wal"


def segment_numbers(folder: Path) -> list[int]:
    """Numbers of the segments in a folder, oldest first."""
    matches = (_SEGMENT.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_log(folder: Path, first_segment: int, first_lsn: int) -> Iterator[Entry]:
    """Every whole record from the start of `first_segment` on; its first one has the number `first_lsn`.

    The tail of the last segment that is no whole record is cut off and the cut synced before the iterator ends.
    Anything else that is missing raises LogCorrupt.
    """
    numbers = [number for number in segment_numbers(folder) if number >= first_segment]
    if numbers != list(range(first_segment, first_segment + len(numbers))):
        raise LogCorrupt(f"{folder}: segments {numbers} of the log have a gap")
    lsn = first_lsn
    for number in numbers:
        path = segment_path(folder, number)
        end = 0
        for entry, behind in read_frames(path, lsn):
            lsn, end = entry.lsn + 1, behind
            yield entry
        if end == path.stat().st_size:
            continue
        if number != numbers[-1]:
            raise LogCorrupt(f"{path}: record {lsn} at byte {end} is damaged, and a newer segment follows")
        check_tail(path, end, lsn - 1)
        _cut(path, end)


def _cut(path: Path, end: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(fd, end)
        os.fdatasync(fd)
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Rotate:
    number: int


class Log:
    """The writing end. One thread appends and rotates, one thread (the same or another) flushes."""

    def __init__(self, folder: Path, segment: int, next_lsn: int) -> None:
        """Continue (or create) `segment`; `next_lsn` is the number of the next record."""
        self._folder = folder
        self._lock = threading.Lock()
        self._pending: list[list[Buffer] | _Rotate] = []
        self._segment = segment
        self._next_lsn = next_lsn
        self._durable = next_lsn - 1
        self._fd = self._open(segment)
        paths = [segment_path(folder, number) for number in segment_numbers(folder)]
        self._total_bytes = sum(path.stat().st_size for path in paths)

    @property
    def last_lsn(self) -> int:
        """Number of the newest record, durable or not."""
        return self._next_lsn - 1

    @property
    def durable_lsn(self) -> int:
        """Number of the newest record known to be on disk."""
        return self._durable

    @property
    def segment(self) -> int:
        """Number of the segment that the next record goes to."""
        return self._segment

    @property
    def total_bytes(self) -> int:
        """Bytes of the segments found at the start and of all records since; only grows."""
        return self._total_bytes

    def append(self, meta: bytes, blobs: Sequence[Buffer] = ()) -> int:
        """Queue one record and return its number. The blobs must not change until it is durable."""
        with self._lock:
            lsn = self._next_lsn
            frame = make_frame(lsn, self._durable, meta, blobs)
            self._pending.append(frame)
            self._next_lsn += 1
            self._total_bytes += sum(len(part) for part in frame)
            return lsn

    def rotate(self) -> int:
        """Let the next record start a new segment, whose number is returned; the old one is synced before it exists."""
        with self._lock:
            self._segment += 1
            self._pending.append(_Rotate(self._segment))
            return self._segment

    def has_pending(self) -> bool:
        with self._lock:
            return bool(self._pending)

    def flush(self) -> int:
        """Write and sync everything queued so far; returns the number of the newest durable record.

        After an OSError nothing more may be flushed: what reached the disk is known only by reading it again.
        """
        with self._lock:
            work, self._pending = self._pending, []
            newest = self._next_lsn - 1
        buffers: list[Buffer] = []
        for item in work:
            if isinstance(item, _Rotate):
                self._write(buffers)
                buffers = []
                os.fdatasync(self._fd)
                os.close(self._fd)
                self._fd = self._open(item.number)
            else:
                buffers.extend(item)
        self._write(buffers)
        if work:
            os.fdatasync(self._fd)
        self._durable = newest
        return newest

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        os.close(self._fd)

    def remove_segments_before(self, number: int) -> None:
        """Delete segments that a durable snapshot has made superfluous."""
        for old in segment_numbers(self._folder):
            if old < number:
                with contextlib.suppress(FileNotFoundError):
                    segment_path(self._folder, old).unlink()
        sync_folder(self._folder)

    def _open(self, number: int) -> int:
        path = segment_path(self._folder, number)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        sync_folder(self._folder)
        return fd

    def _write(self, buffers: list[Buffer]) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        while views:
            written = os.writev(self._fd, views[:_BUFFERS_PER_WRITE])
            while views and written >= len(views[0]):
                written -= len(views[0])
                views.pop(0)
            if written:
                views[0] = views[0][written:]
