"""Snapshots: folders `snapshot-<n>` that make all log segments before n superfluous.

A snapshot is fuzzy. `control.json` is the durable state as of the first record of segment n; each fragment is written
later, at whatever version it then has, one safetensors file each. Replay starts at segment n and skips the tensor work
of versions a fragment already has. A folder counts once it carries its final name: it is written under another name,
synced and renamed. When to take a snapshot is the engine's decision.
"""

import errno
import json
import os
import re
import shutil
import zlib
from collections import deque
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diloco_trainer.algorithm.guard import NormHistory
from diloco_trainer.synchronizer.log import sync_folder
from diloco_trainer.synchronizer.state import FragmentState, Retained, Version

FORMAT = 2
_NAME = re.compile(r"snapshot-(\d{8})")
_READ_BYTES = 1 << 20


class SnapshotCorrupt(Exception):
    """A snapshot that was finished cannot be read; the text names the file."""


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class _Document:
    """What `control.json` says, under a checksum of its own."""

    segment: int
    next_lsn: int
    fragments: list[int]
    """crc32 of each fragment's file."""
    control: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A snapshot as read back."""

    segment: int
    """First segment of the log to replay."""
    next_lsn: int
    """Number of the first record of that segment."""
    control: dict[str, Any]
    fragments: list[FragmentState]


class SnapshotWriter:
    """Writes one snapshot, fragment by fragment; nothing counts before `finish`."""

    def __init__(self, folder: Path, segment: int, next_lsn: int, control: dict[str, Any]) -> None:
        """`control` is JSON data as of the record before `next_lsn`, the first one of `segment`."""
        self._folder = folder
        self.segment = segment
        self._next_lsn = next_lsn
        self._control = control
        self._temporary = folder / f"snapshot-{segment:08d}.tmp"
        self._crcs: list[int] = []
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()

    def write_fragment(self, state: FragmentState) -> None:
        """Write the next fragment, in order of index. Its tensors must not change meanwhile."""
        assert state.index == len(self._crcs), "fragments are written in order"
        tensors = {"theta": state.theta, "momentum": state.momentum, "published": state.published}
        tensors |= {f"delta-{item.version.number}": item.delta for item in state.retained}
        about = {
            "newest": asdict(state.newest),
            "retained": [asdict(item.version) for item in state.retained],
            "norms": state.norms.to_json(),
        }
        path = self._temporary / _fragment_name(state.index)
        save_tensors(tensors, path, {"state": json.dumps(about)})
        self._crcs.append(_sync_and_sum(path))

    def finish(self) -> None:
        """Make the snapshot count, durably, and delete older ones."""
        document = {
            "segment": self.segment,
            "next_lsn": self._next_lsn,
            "fragments": self._crcs,
            "control": self._control,
        }
        path = self._temporary / "control.json"
        sealed = {"format": FORMAT, "crc": _crc_of(document), "document": document}
        path.write_text(json.dumps(sealed), encoding="utf-8")
        _sync_and_sum(path)
        sync_folder(self._temporary)
        final = self._folder / f"snapshot-{self.segment:08d}"
        self._temporary.rename(final)
        sync_folder(self._folder)
        for number in snapshot_numbers(self._folder):
            if number < self.segment:
                shutil.rmtree(self._folder / f"snapshot-{number:08d}")


def snapshot_numbers(folder: Path) -> list[int]:
    """Numbers of the finished snapshots in a folder, oldest first."""
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def load_newest(folder: Path, retained: int) -> Loaded | None:
    """The newest finished snapshot, or None; leftovers of unfinished ones are deleted."""
    for leftover in folder.glob("snapshot-*.tmp"):
        shutil.rmtree(leftover)
    numbers = snapshot_numbers(folder)
    if not numbers:
        return None
    place = folder / f"snapshot-{numbers[-1]:08d}"
    document = _read_document(place / "control.json")
    fragments = [_load_fragment(place, index, crc, retained) for index, crc in enumerate(document.fragments)]
    return Loaded(document.segment, document.next_lsn, document.control, fragments)


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """`save_file` that fails as writing a file does: with an OSError that names the path."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # safetensors' own type, also for a full disk
        raise OSError(errno.EIO, str(error), str(path)) from error


def _read_document(path: Path) -> _Document:
    """Parse and check `control.json`; raises SnapshotCorrupt."""
    try:
        sealed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SnapshotCorrupt(f"{path} cannot be read") from error
    if not isinstance(sealed, dict) or "format" not in sealed:
        raise SnapshotCorrupt(f"{path} is not the control state of a snapshot")
    if sealed["format"] != FORMAT:
        raise SnapshotCorrupt(f"{path} has format {sealed['format']}, this version reads {FORMAT}")
    document = sealed.get("document")
    if not isinstance(document, dict) or sealed.get("crc") != _crc_of(document):
        raise SnapshotCorrupt(f"{path} is damaged: its checksum does not fit")
    try:
        return _Document(**document)
    except ValueError as error:
        raise SnapshotCorrupt(f"{path} is not the control state of a snapshot") from error


def _crc_of(document: object) -> int:
    """crc32 of JSON data; the same after a trip through JSON text."""
    return zlib.crc32(json.dumps(document).encode())


def _fragment_name(index: int) -> str:
    return f"fragment-{index:04d}.safetensors"


def _load_fragment(place: Path, index: int, crc: int, retained: int) -> FragmentState:
    path = place / _fragment_name(index)
    if not path.is_file() or _sync_and_sum(path) != crc:
        raise SnapshotCorrupt(f"{path} is missing or damaged")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["state"])
        versions = [Version(**item) for item in about["retained"]]
        tensors = [file.get_tensor(f"delta-{version.number}").clone() for version in versions]
        sums = [sha256(memoryview(tensor.numpy())).digest() for tensor in tensors]
        deltas = [Retained(*parts) for parts in zip(versions, tensors, sums, strict=True)]
        return FragmentState(
            index=index,
            theta=file.get_tensor("theta").clone(),
            momentum=file.get_tensor("momentum").clone(),
            published=file.get_tensor("published").clone(),
            newest=Version(**about["newest"]),
            retained=deque(deltas, maxlen=retained),
            norms=NormHistory.from_json(about["norms"]),
        )


def _sync_and_sum(path: Path) -> int:
    """Make a written file durable and return the crc32 of its content."""
    crc = 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while chunk := file.read(_READ_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc
