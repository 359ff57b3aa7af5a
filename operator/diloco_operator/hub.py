"""The seam between the operator and where a job is kept: the `Hub` protocol and `FileHub`, a job in a work folder.

One writer: `commit_status` is guarded by the resource version that was read. `FileHub` is for local runs: `job.json` is
replaced as a whole and synced, events are appended to `events.jsonl`, the job's secret key lies in `key` (0600), and a
lock keeps a second run off the folder. Decides nothing about a job.
"""

import fcntl
import json
import os
import secrets
import shutil
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

from pydantic import ValidationError

from diloco_api.accept import problems
from diloco_api.errors import SpecError, first_problem, spec_error
from diloco_api.status import JobStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.files import write_atomically

IMMUTABLE = ("algorithm", "train", "budget", "synchronizer")
"""Sections of a spec that cannot change once a job exists."""
OWN_ENTRIES = (
    *("job.json", "key", "events.jsonl", "progress.json", "processes.json", "operator.log"),
    *("logs", "configmaps", "secrets", "claims", "pods", "lock"),
)
"""What a run puts into its work folder before it has a result; the lock goes last."""
_KEY_BYTES = 32
_LOCK = "lock"
_BEFORE_THE_JOB = frozenset({_LOCK, "operator.log", "lost+found"})
"""May be in a folder that holds no job yet, and so may hidden files."""


FinalizerEdit = Literal["add", "remove"]


class HubError(Exception):
    """The hub did not answer, or refused."""


class HubConflict(HubError):
    """The job has changed since it was read: read it again."""


class HubInvalid(HubError):
    """The job is kept, but its spec is not one this operator can read. The text names the field."""


class HubOutdated(HubError):
    """What was written is not what is kept: the hub's CRD is older than this operator."""

    def __init__(self, problem: str, kept: DiLoCoJob) -> None:
        super().__init__(f"the installed CRD is older than the operator: it {problem}")
        self.problem = problem
        """What it does to which field."""
        self.kept = kept
        """The job as it is kept."""


class Hub(Protocol):
    """Where one job is kept."""

    async def read_job(self) -> DiLoCoJob | None:
        """The job as it is now; None when it does not exist (any more). HubInvalid when it is none we can read."""

    async def read_key(self) -> bytes:
        """The job's secret key; made when it is asked for the first time."""

    async def commit_status(self, job: DiLoCoJob, status: JobStatus) -> DiLoCoJob:
        """Replace the status of the job as it was read; HubConflict when it is not that one any more."""

    async def would_drop(self, job: DiLoCoJob, status: JobStatus) -> str:
        """What `commit_status` would find dropped, without writing anything; empty: nothing."""

    async def edit_finalizer(self, job: DiLoCoJob, edit: FinalizerEdit) -> None:
        """Hold the job's deletion up, or let it go; HubConflict when it is not the job that was read any more."""

    async def emit_event(self, job: DiLoCoJob, kind: str, reason: str, message: str) -> None:
        """Tell people; `kind` is Normal or Warning."""


def _accept(job: DiLoCoJob) -> None:
    """Nothing to check."""


class FileHub:
    """One job in one work folder. `open_folder` takes the lock, `close` gives it back."""

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock

    @classmethod
    def open_folder(cls, folder: Path, job: DiLoCoJob, check: Callable[[DiLoCoJob], None] = _accept) -> "FileHub":
        """Take the folder for this job: a new one, or the same one again (its status, uid and key are kept).

        `check` may refuse a job that is new to the folder. SpecError, one line naming the folder, when it cannot be
        written, is in use, or holds another job or something else; then nothing in it is changed.
        """
        try:
            _check_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)
            new_lock = not (folder / _LOCK).exists()
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SpecError(f"{folder}: cannot be used as work folder: {error.strerror}") from error
        hub = cls(folder, lock)
        try:
            hub._take_lock()
            hub._take_job(job, check)
        except (OSError, SpecError) as error:
            if new_lock:
                (folder / _LOCK).unlink(missing_ok=True)
            hub.close()
            if isinstance(error, SpecError):
                raise
            raise SpecError(f"{folder}: cannot be written: {error.strerror}") from error
        return hub

    def close(self) -> None:
        """Let another run have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def leave(self) -> None:
        """As `close`; of a job that never began nothing stays in the folder."""
        try:
            present = self._read()
        except (OSError, SpecError):
            present = None
        if self._lock >= 0 and present is not None and _never_began(present):
            for name in OWN_ENTRIES:
                entry = self._folder / name
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
        self.close()

    async def read_job(self) -> DiLoCoJob | None:
        try:
            return self._read()
        except SpecError as error:
            raise HubError(str(error)) from error
        except OSError as error:
            raise HubError(f"{self._job_file}: cannot be read: {error.strerror}") from error

    async def read_key(self) -> bytes:
        path = self._folder / "key"
        try:
            if not path.exists():
                write_atomically(path, secrets.token_hex(_KEY_BYTES), mode=0o600, sync=True)
            return path.read_bytes()
        except OSError as error:
            raise HubError(f"{path}: cannot be read or written: {error.strerror}") from error

    async def commit_status(self, job: DiLoCoJob, status: JobStatus) -> DiLoCoJob:
        present = await self.read_job()
        if present is None or present.metadata.resource_version != job.metadata.resource_version:
            raise HubConflict(f"{self._job_file}: has changed since it was read")
        try:
            return self._write(present.model_copy(update={"status": status}))
        except OSError as error:
            raise HubError(f"{self._job_file}: cannot be written: {error.strerror}") from error

    async def would_drop(self, job: DiLoCoJob, status: JobStatus) -> str:
        """A file keeps everything."""
        return ""

    async def edit_finalizer(self, job: DiLoCoJob, edit: FinalizerEdit) -> None:
        """A work folder is removed by its owner, whatever we think of it: there is nothing to hold up."""

    async def emit_event(self, job: DiLoCoJob, kind: str, reason: str, message: str) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "type": kind, "reason": reason}
        try:
            with (self._folder / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "message": message}) + "\n")
        except OSError as error:
            raise HubError(f"{self._folder / 'events.jsonl'}: {error.strerror}") from error

    @property
    def _job_file(self) -> Path:
        return self._folder / "job.json"

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise SpecError(f"{self._folder}: another run uses this work folder (process {holder})") from error
        if self._folder.joinpath(_LOCK).stat().st_ino != os.fstat(self._lock).st_ino:
            raise SpecError(f"{self._folder}: another run has just left this work folder; try again")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _take_job(self, job: DiLoCoJob, check: Callable[[DiLoCoJob], None]) -> None:
        present = self._read()
        if present is None or _never_began(present):
            check(job)
            metadata = job.metadata.model_copy(
                update={
                    "uid": str(uuid.uuid4()),
                    "generation": 1,
                    "resource_version": "",
                    "creation_timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            )
            self._write(job.model_copy(update={"metadata": metadata, "status": JobStatus()}))
            return
        for field in ("namespace", "name"):
            old, new = getattr(present.metadata, field), getattr(job.metadata, field)
            if old != new:
                raise SpecError(
                    f"{self._folder}: holds the job of {field} {old!r}, not {new!r}; use another work folder"
                )
        for section in IMMUTABLE:
            if getattr(present.spec, section) != getattr(job.spec, section):
                raise SpecError(
                    f"{self._folder}: holds this job with another spec.{section}, which is immutable; "
                    "use another work folder"
                )
        edited = present.model_copy(update={"spec": job.spec})
        broken = problems(edited)
        if broken:
            raise spec_error(broken)
        if present.spec != job.spec:
            metadata = present.metadata.model_copy(update={"generation": present.metadata.generation + 1})
            self._write(edited.model_copy(update={"metadata": metadata}))

    def _read(self) -> DiLoCoJob | None:
        try:
            return DiLoCoJob.model_validate_json(self._job_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise SpecError(f"{self._job_file}: is not a job of this version: {first_problem(error)}") from error

    def _write(self, job: DiLoCoJob) -> DiLoCoJob:
        version = str(int(job.metadata.resource_version or 0) + 1)
        written = job.model_copy(update={"metadata": job.metadata.model_copy(update={"resource_version": version})})
        text = written.model_dump_json(by_alias=True, exclude_none=True, indent=2)
        write_atomically(self._job_file, text + "\n", sync=True)
        return written


def _never_began(present: DiLoCoJob) -> bool:
    """Its Synchronizer was never heard and no Learner was ever started: nothing is lost with it."""
    return present.status.progress is None and not present.status.learner_statuses


def _check_folder(folder: Path) -> None:
    """Refuse to mix a run with something else."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder}: cannot be used as work folder: is a file")
    if not folder.exists() or (folder / "job.json").exists():
        return
    foreign = [name for name in os.listdir(folder) if name not in _BEFORE_THE_JOB and not name.startswith(".")]
    if foreign:
        raise SpecError(f"{folder}: cannot be used as work folder: holds no job, but other files ({min(foreign)})")
