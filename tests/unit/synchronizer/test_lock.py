"""One Synchronizer on a state folder, each with a greater number than all before it."""

from pathlib import Path

import pytest

from diloco_trainer.synchronizer.lock import FolderInUse, FolderLock, FolderLost


def test_numbers_grow_over_holders(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        with FolderLock(tmp_path) as lock:
            numbers.append(lock.number)
    assert numbers == [1, 2, 3]


def test_a_second_holder_is_turned_away_and_takes_no_number(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as lock:
        with pytest.raises(FolderInUse, match="in use by another Synchronizer"):
            FolderLock(tmp_path)
        lock.check()
    with FolderLock(tmp_path) as lock:
        assert lock.number == 2


def test_a_holder_notices_that_the_folder_was_taken_from_it(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as lock:
        (tmp_path / "lock").unlink()
        with pytest.raises(FolderLost):
            lock.check()
    with FolderLock(tmp_path) as lock:
        (tmp_path / "lock").write_text("00000000000000000007\n")
        with pytest.raises(FolderLost, match="taken by number 00000000000000000007, ours is 1"):
            lock.check()
