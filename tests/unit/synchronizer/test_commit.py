"""The commit thread: whatever ends it is heard of."""

import threading
from pathlib import Path

import pytest

from diloco_trainer.synchronizer.commit import ThreadCommitter
from diloco_trainer.synchronizer.log import Log

PATIENCE_SECONDS = 20.0


class Broken(Log):
    """A log whose flush fails."""

    def __init__(self, folder: Path, error: BaseException) -> None:
        super().__init__(folder, 1, 1)
        self._error = error

    def flush(self) -> int:
        raise self._error


@pytest.mark.parametrize("error", [OSError(28, "no space left"), MemoryError(), ValueError("bug"), AssertionError()])
def test_any_error_of_the_commit_thread_is_handed_on(tmp_path: Path, error: BaseException) -> None:
    heard: list[BaseException] = []
    over = threading.Event()

    def on_error(found: BaseException) -> None:
        heard.append(found)
        over.set()

    committer = ThreadCommitter(Broken(tmp_path, error), lambda lsn: None, on_error)
    committer.wake()
    assert over.wait(PATIENCE_SECONDS)
    assert heard == [error]
    committer.close()


def test_an_error_of_whoever_hears_that_records_are_durable_is_handed_on(tmp_path: Path) -> None:
    heard: list[BaseException] = []
    over = threading.Event()

    def on_durable(lsn: int) -> None:
        raise RuntimeError("the engine is gone")

    def on_error(found: BaseException) -> None:
        heard.append(found)
        over.set()

    log = Log(tmp_path, 1, 1)
    log.append(b"{}")
    committer = ThreadCommitter(log, on_durable, on_error)
    committer.wake()
    assert over.wait(PATIENCE_SECONDS)
    assert [str(error) for error in heard] == ["the engine is gone"]
    committer.close()
