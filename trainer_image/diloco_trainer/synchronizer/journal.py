"""Durable before visible: a change is applied and appended at once, and told to anyone only once it is synced.

The engine's working state is always the fold of all appended records (`control.apply`), so that replay gives the same.
Whoever tells the outside about it hands its words to `when_durable`.
"""

from collections import deque
from collections.abc import Callable, Sequence

from diloco_trainer.synchronizer.control import Control
from diloco_trainer.synchronizer.frames import Buffer
from diloco_trainer.synchronizer.index import Index
from diloco_trainer.synchronizer.log import Log
from diloco_trainer.synchronizer.records import Record, dump_record


class Journal:
    """Belongs to the engine thread; only the log behind it is flushed elsewhere."""

    def __init__(self, log: Log, control: Control, index: Index) -> None:
        self._log = log
        self._index = index
        self.control = control
        """The fold of all records so far."""
        self._durable = log.durable_lsn
        self._unsynced: deque[tuple[int, Record]] = deque()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_durable(self) -> bool:
        """Whether everything recorded is known to be on disk."""
        return self._durable == self._log.last_lsn

    def record(self, record: Record, blobs: Sequence[Buffer] = ()) -> None:
        """Apply and append; `blobs` must not change any more."""
        self.control.apply(record)
        lsn = self._log.append(dump_record(record), blobs)
        self._unsynced.append((lsn, record))

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` on this thread once everything recorded so far is on disk, in the order asked for."""
        if self.is_durable:
            action()
        else:
            self._waiting.append((self._log.last_lsn, action))

    def has_work(self) -> bool:
        """Whether a flush is due."""
        return not self.is_durable

    def durable(self, lsn: int) -> None:
        """The log is on disk up to this record."""
        self._durable = max(self._durable, lsn)
        while self._unsynced and self._unsynced[0][0] <= self._durable:
            self._index.add(*self._unsynced.popleft())
        while self._waiting and self._waiting[0][0] <= self._durable:
            self._waiting.popleft()[1]()

    def commit_index(self) -> None:
        """Let readers of the index see what has been added."""
        self._index.commit()

    def close_index(self) -> None:
        self._index.close()
