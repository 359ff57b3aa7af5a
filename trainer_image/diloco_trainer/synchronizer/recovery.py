"""Opening a state folder: take its lease, load the newest snapshot, cut and replay the log, rebuild the index.

After it the engine's state is what it was when the last whole record was appended. A folder of another job, or one
whose replay does not give what is on record, is not opened. Nothing is repaired or guessed here.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diloco_api.exit_codes import ExitCode
from diloco_trainer.synchronizer.control import Control, RecordMismatch
from diloco_trainer.synchronizer.frames import Entry, LogCorrupt
from diloco_trainer.synchronizer.index import Index
from diloco_trainer.synchronizer.journal import Journal
from diloco_trainer.synchronizer.lock import FolderInUse, FolderLock
from diloco_trainer.synchronizer.log import Log, read_log, segment_numbers
from diloco_trainer.synchronizer.merge_exec import MergeContext, ReplayMismatch, redo
from diloco_trainer.synchronizer.records import JobRecord, MergeRecord, OpenRecord, Record, parse_record
from diloco_trainer.synchronizer.snapshot import SnapshotCorrupt, load_newest
from diloco_trainer.synchronizer.state import FragmentState

logger = logging.getLogger(__name__)


class StateError(Exception):
    """The folder cannot be used; one line, and the exit code that goes with it."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code


@dataclass(frozen=True, slots=True)
class Opened:
    """A state folder in use."""

    lock: FolderLock
    log: Log
    journal: Journal
    fragments: list[FragmentState]
    replayed_seconds: float
    """What the merges in the log took when they were made."""


@dataclass(slots=True)
class _Replay:
    """The fold under way."""

    control: Control
    fragments: list[FragmentState]
    last_lsn: int
    entries: list[tuple[int, Record]]


def open_state(
    folder: Path,
    job: JobRecord,
    context: MergeContext,
    new_control: Callable[[], Control],
    version_0: Callable[[], list[FragmentState]],
    wall: float,
) -> Opened:
    """Open (or create) the folder for a job; raises StateError. `wall` is the time for the record of the opening."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
    except FolderInUse as error:
        raise StateError(ExitCode.FENCED, str(error)) from error
    except OSError as error:
        raise StateError(ExitCode.STATE_UNWRITABLE, f"{folder}: {error.strerror}") from error
    try:
        return _open(folder, lock, job, context, new_control, version_0, wall)
    except (LogCorrupt, SnapshotCorrupt, ReplayMismatch, RecordMismatch) as error:
        lock.close()
        raise StateError(ExitCode.STATE_CORRUPT, str(error)) from error
    except StateError:
        lock.close()
        raise
    except OSError as error:
        lock.close()
        raise StateError(ExitCode.STATE_UNWRITABLE, f"{error.filename or folder}: {error.strerror}") from error


def _open(
    folder: Path,
    lock: FolderLock,
    job: JobRecord,
    context: MergeContext,
    new_control: Callable[[], Control],
    version_0: Callable[[], list[FragmentState]],
    wall: float,
) -> Opened:
    loaded = load_newest(folder, context.policy.retained_versions)
    if loaded is not None:
        segment, next_lsn = loaded.segment, loaded.next_lsn
        control = Control.from_json(loaded.control)
        assert control.job is not None, "a snapshot follows the job's first record"
        check_job(folder, control.job, job)
        replay = _Replay(control, loaded.fragments, next_lsn - 1, [])
    else:
        segment, next_lsn = 1, 1
        replay = _Replay(new_control(), [], 0, [])
    for entry in read_log(folder, segment, next_lsn):
        record = _parse(folder, entry)
        if isinstance(record, JobRecord):
            check_job(folder, record, job)
        if not replay.fragments:
            replay.fragments = version_0()
        _fold(replay, context, entry, record)
    fragments = replay.fragments or version_0()
    log = Log(folder, max([segment, *segment_numbers(folder)]), replay.last_lsn + 1)
    log.remove_segments_before(segment)
    index = Index(folder, replay.last_lsn)
    for lsn, record in replay.entries:
        index.add(lsn, record)
    index.commit()
    journal = Journal(log, replay.control, index)
    if replay.control.job is None:
        journal.record(job)
    finish = replay.control.finish
    resumed = finish is not None and finish.reason is None
    journal.record(OpenRecord(lock.number, wall, resumed))
    journal.durable(log.flush())
    if replay.entries or loaded is not None:
        logger.info(
            "%s: %d records replayed, %d outer steps%s",
            *(folder, len(replay.entries), replay.control.outer_steps, "; resume after a drain" if resumed else ""),
        )
    seconds = sum(record.seconds for _, record in replay.entries if isinstance(record, MergeRecord))
    return Opened(lock, log, journal, fragments, seconds)


def _parse(folder: Path, entry: Entry) -> Record:
    try:
        return parse_record(entry.meta)
    except ValueError as error:
        raise RecordMismatch(f"{folder}: record {entry.lsn} is of no kind this version knows") from error


def _fold(replay: _Replay, context: MergeContext, entry: Entry, record: Record) -> None:
    """Fold one record into control state and tensors; versions a snapshot already holds keep their tensors."""
    try:
        replay.control.apply(record)
    except (RecordMismatch, ValueError, KeyError) as error:
        raise RecordMismatch(f"record {entry.lsn} ({record.kind}): {error}") from error
    if isinstance(record, MergeRecord) and record.version > replay.fragments[record.fragment].version:
        try:
            redo(context, replay.fragments[record.fragment], record, entry.blobs, entry.lsn)
        except ValueError as error:
            raise ReplayMismatch(f"record {entry.lsn} (fragment {record.fragment}): {error}") from error
    replay.last_lsn = entry.lsn
    replay.entries.append((entry.lsn, record))


def check_job(folder: Path, found: JobRecord, ours: JobRecord) -> None:
    """Raise StateError unless the folder is this job's."""
    if found.job_uid != ours.job_uid:
        raise StateError(ExitCode.STATE_FOREIGN, f"{folder} belongs to job {found.job_uid}, this is job {ours.job_uid}")
    if found.layout_digest != ours.layout_digest:
        raise StateError(
            ExitCode.STATE_FOREIGN,
            f"{folder} holds a model of layout {found.layout_digest[:12]}, this job's is {ours.layout_digest[:12]}",
        )
    if found.policy_digest != ours.policy_digest:
        raise StateError(
            ExitCode.STATE_FOREIGN, f"{folder} was made under another synchronisation policy or budget of this job"
        )
