"""The write-ahead log keeps whole records and nothing else."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_trainer.synchronizer.frames import Entry, LogCorrupt
from diloco_trainer.synchronizer.log import Log, read_log, segment_numbers, segment_path


def write(folder: Path, records: list[tuple[bytes, list[bytes]]]) -> None:
    log = Log(folder, 1, 1)
    for meta, blobs in records:
        log.append(meta, blobs)
    log.close()


def read(folder: Path, segment: int = 1, lsn: int = 1) -> list[Entry]:
    return list(read_log(folder, segment, lsn))


RECORDS = [(b'{"a":1}', []), (b"{}", [b"x" * 30, b""]), (b"", [b"\0" * 20]), (b'{"last":true}', [b"yz"])]


def test_records_come_back_with_their_numbers_and_blobs(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    assert read(tmp_path) == [Entry(i + 1, meta, tuple(blobs)) for i, (meta, blobs) in enumerate(RECORDS)]


def test_an_appended_record_is_not_durable_before_a_flush(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, 1)
    assert log.append(b"one") == 1
    assert log.durable_lsn == 0
    assert read(tmp_path) == []
    assert log.flush() == 1
    assert log.durable_lsn == 1
    assert [entry.meta for entry in read(tmp_path)] == [b"one"]


def test_a_log_cut_at_any_byte_yields_exactly_the_whole_records_and_goes_on(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    whole = segment_path(tmp_path, 1).read_bytes()
    ends = []
    (tmp_path / "again").mkdir()
    log = Log(tmp_path / "again", 1, 1)
    for meta, blobs in RECORDS:
        log.append(meta, blobs)
        ends.append(log.total_bytes)
    log.close()
    for cut in range(len(whole) + 1):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        segment_path(folder, 1).write_bytes(whole[:cut])
        num_whole = sum(end <= cut for end in ends)
        assert len(read(folder)) == num_whole
        assert segment_path(folder, 1).stat().st_size == ([0, *ends])[num_whole]
        log = Log(folder, 1, num_whole + 1)
        log.append(b"next")
        log.close()
        assert [entry.meta for entry in read(folder)] == [meta for meta, _ in RECORDS[:num_whole]] + [b"next"]


@settings(max_examples=60, deadline=None)
@given(tail=st.binary(max_size=80))
def test_garbage_behind_the_last_record_is_cut(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    folder = tmp_path_factory.mktemp("log")
    write(folder, RECORDS)
    size = segment_path(folder, 1).stat().st_size
    with segment_path(folder, 1).open("ab") as file:
        file.write(tail)
    assert len(read(folder)) == len(RECORDS)
    assert segment_path(folder, 1).stat().st_size == size


def test_zeros_behind_the_last_record_are_no_record(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    with segment_path(tmp_path, 1).open("ab") as file:
        file.write(bytes(4096))
    assert len(read(tmp_path)) == len(RECORDS)


def test_a_damaged_record_that_was_synced_is_corruption_and_not_a_tail(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, 1)
    for meta in (b"one", b"two", b"three"):
        log.append(meta)
        log.flush()
    log.close()
    path = segment_path(tmp_path, 1)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"two")] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(LogCorrupt, match="record 2 at byte"):
        read(tmp_path)


def test_a_batch_that_never_finished_syncing_is_cut_as_a_whole_tail(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, 1)
    log.append(b"one")
    log.flush()
    log.append(b"two")
    log.append(b"three")
    log.close()
    path = segment_path(tmp_path, 1)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"two")] ^= 1
    path.write_bytes(damaged)
    assert [entry.meta for entry in read(tmp_path)] == [b"one"]


def test_rotation_starts_a_segment_and_old_ones_can_go(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, 1)
    log.append(b"old")
    assert log.rotate() == 2
    log.append(b"new")
    log.flush()
    assert segment_numbers(tmp_path) == [1, 2]
    assert [entry.meta for entry in read(tmp_path)] == [b"old", b"new"]
    log.remove_segments_before(2)
    assert [(entry.lsn, entry.meta) for entry in read(tmp_path, 2, 2)] == [(2, b"new")]
    log.close()


def test_a_damaged_end_of_a_segment_that_is_not_the_last_is_corruption(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, 1)
    log.append(b"old")
    log.rotate()
    log.append(b"new")
    log.close()
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LogCorrupt, match="newer segment follows"):
        read(tmp_path)


def test_a_missing_segment_is_corruption(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, 1)
    for meta in (b"one", b"two", b"three"):
        log.append(meta)
        log.rotate()
    log.close()
    segment_path(tmp_path, 2).unlink()
    with pytest.raises(LogCorrupt, match="gap"):
        read(tmp_path)


def test_one_flush_makes_many_records_durable(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, 1)
    for _ in range(1000):
        log.append(b"m", [b"blob", b"blob"])
    assert log.flush() == 1000
    log.close()
    assert len(read(tmp_path)) == 1000
