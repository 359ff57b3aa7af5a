"""The lease on a state folder: one Synchronizer writes to it, and each one has a greater number than all before it.

The lease is an flock on `lock`; the number is the file's content and goes into the log. A holder whose number is no
longer the file's has lost the folder (a file system that forgot the flock) and must stop.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType


class FolderInUse(Exception):
    """Another process holds the folder."""


class FolderLost(Exception):
    """Another process has taken the folder since."""


class FolderLock:
    """Held from construction to `close`, or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lease and the next number; raises FolderInUse, or OSError when the folder cannot be written."""
        self._path = folder / "lock"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise FolderInUse(f"{folder} is in use by another Synchronizer") from error
        self.number = self._read() + 1
        """Fencing number of this holder."""
        os.pwrite(self._fd, f"{self.number:020d}\n".encode(), 0)
        os.fdatasync(self._fd)

    def check(self) -> None:
        """Raise FolderLost when the number on the volume is not ours any more."""
        try:
            content = self._path.read_text(encoding="ascii").strip()
        except FileNotFoundError as error:
            raise FolderLost(f"{self._path} is gone") from error
        if content != f"{self.number:020d}":
            raise FolderLost(f"{self._path} was taken by number {content or 'nobody'}, ours is {self.number}")

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> int:
        content = os.pread(self._fd, 64, 0).strip()
        return int(content) if content else 0
