"""Who flushes the log: a thread of its own in the process, the caller's own thread under scripted time.

Both tell the engine the newest durable record through one callback; neither knows what waits for it.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from diloco_trainer.synchronizer.log import Log


class Committer(Protocol):
    """Makes appended records durable."""

    def wake(self) -> None:
        """Records have been appended."""

    def close(self) -> None:
        """Make everything durable, close the log, stop."""


class ThreadCommitter:
    """Group commit: while one sync runs the next batch gathers."""

    def __init__(self, log: Log, on_durable: Callable[[int], None], on_error: Callable[[BaseException], None]) -> None:
        """Both callbacks are called on the commit thread, which ends with the first error."""
        self._log = log
        self._on_durable = on_durable
        self._on_error = on_error
        self._condition = threading.Condition()
        self._woken = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log-commit", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with self._condition:
            self._woken = True
            self._condition.notify()

    def close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._woken or self._closing)
                self._woken = False
                closing = self._closing
            try:
                if closing:
                    self._log.close()
                    return
                self._on_durable(self._log.flush())
            except BaseException as error:  # noqa: BLE001 - the outermost loop of this thread: nothing is durable any more
                self._on_error(error)
                return


class InlineCommitter:
    """Flushes on the caller's thread, as soon as it is asked to."""

    def __init__(self, log: Log, on_durable: Callable[[int], None]) -> None:
        self._log = log
        self._on_durable = on_durable

    def wake(self) -> None:
        self._on_durable(self._log.flush())

    def close(self) -> None:
        self._log.close()
