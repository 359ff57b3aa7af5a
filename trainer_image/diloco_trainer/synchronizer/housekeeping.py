"""When a snapshot is taken, and how it is taken without stopping the engine.

It starts when the log has outgrown the state or replaying it would take more than 2 s; at twice that merges wait.
Fragments are lent to the writing thread one after another; a merge of the fragment being written waits, others go on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diloco_trainer.synchronizer.core import Core
from diloco_trainer.synchronizer.log import Log
from diloco_trainer.synchronizer.merging import Merger
from diloco_trainer.synchronizer.runner import Worker
from diloco_trainer.synchronizer.snapshot import SnapshotWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a snapshot is due; merges wait at twice these."""

    replay_seconds: float = 2.0
    """Estimated time of replaying the log."""
    least_log_bytes: int = 4 << 20
    """A log smaller than this is no reason for a snapshot, however small the state is."""


class Snapshots:
    """Belongs to the engine thread; only the writing itself happens on the worker."""

    def __init__(
        self,
        folder: Path,
        log: Log,
        core: Core,
        merger: Merger,
        worker: Worker,
        limits: Limits,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._limits = limits
        self._folder = folder
        self._log = log
        self._core = core
        self._merger = merger
        self._worker = worker
        self._on_crash = on_crash
        self._base_bytes = 0
        self._base_seconds = 0.0
        self._base_lsn = -1
        self._waiting: list[Callable[[], None]] = []
        self.running = False

    def consider(self) -> None:
        """Start a snapshot if one is due; let merges wait while the log is far too long."""
        overgrown = self._overgrown()
        if overgrown >= 1.0 and not self.running:
            self.begin()
        if self._merger.held_back != (overgrown >= 2.0):
            self._merger.held_back = not self._merger.held_back
            self._merger.pump()

    def begin(self, then: Callable[[], None] | None = None) -> None:
        """Take a snapshot of everything recorded so far; `then` runs once it is durable and old segments are gone.

        While one is being taken `then` waits for another one.
        """
        if self.running:
            self._waiting.append(lambda: self.begin(then))
            return
        if self._log.last_lsn == self._base_lsn:
            if then is not None:
                then()
            return
        self.running = True
        first_lsn = self._log.last_lsn + 1
        segment = self._log.rotate()
        control = self._core.control.to_json()
        appended, seconds = self._log.total_bytes, self._merger.merge_seconds

        def write() -> None:
            writer = SnapshotWriter(self._folder, segment, first_lsn, control)
            self._write(writer, 0, finished)

        def finished() -> None:
            logger.info("snapshot of segment %d is durable", segment)
            self._base_bytes, self._base_seconds, self._base_lsn = appended, seconds, first_lsn - 1
            self.running = False
            if then is not None:
                then()
            waiting, self._waiting = self._waiting, []
            for action in waiting:
                action()
            self.consider()

        self._core.journal.when_durable(write)

    def _write(self, writer: SnapshotWriter, fragment: int, finished: Callable[[], None]) -> None:
        if fragment == len(self._core.fragments):

            def finish() -> None:
                writer.finish()
                self._log.remove_segments_before(writer.segment)

            self._worker.submit(finish, lambda _: finished(), self._on_crash)
            return

        def lent() -> None:
            state = self._core.fragments[fragment]
            self._worker.submit(lambda: writer.write_fragment(state), lambda _: written(), self._on_crash)

        def written() -> None:
            self._merger.give_back(fragment)
            self._write(writer, fragment + 1, finished)

        self._merger.lend(fragment, lent)

    def _overgrown(self) -> float:
        """1.0 where a snapshot is due."""
        state_bytes = max(self._limits.least_log_bytes, sum(state.num_bytes for state in self._core.fragments))
        log_bytes = self._log.total_bytes - self._base_bytes
        replay_seconds = self._merger.merge_seconds - self._base_seconds
        return max(log_bytes / state_bytes, replay_seconds / self._limits.replay_seconds)
