"""The index says what the log says, and can be lost."""

import logging
import resource
import signal
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from diloco_trainer.algorithm.events import GoneReason, RefusalReason
from diloco_trainer.synchronizer.index import Index
from diloco_trainer.synchronizer.records import (
    AdmitRecord,
    Contributor,
    GoneRecord,
    LeaseRecord,
    MergeRecord,
    Record,
    RefuseRecord,
    dump_record,
    parse_record,
)

CONTRIBUTORS = (
    Contributor(0, 1, 1, 4, 0, 3, 90, 90, 3, 1e-3, 2700.0, 1.5),
    Contributor(2, 5, 7, 4, 0, 3, 60, 60, 2, 1e-3, 1800.0, 1.0),
)
MERGE = MergeRecord(3, 4, 1, "everyone", CONTRIBUTORS, "rda", "bodies", 1, 2, "d" * 64, 0.1, 5.0, 3, 0.01, 2.0)
RECORDS: list[Record] = [
    AdmitRecord(0, 1, "here", 1.0),
    LeaseRecord(0, 1, 1, 0, 4, 8, 1, 40, 0, ((0, 0, 8), (1, 0, 2)), False),
    MERGE,
    RefuseRecord(0, 1, 3, 2, RefusalReason.NON_FINITE, "NaN", 1, 120, 30, 3.0),
    GoneRecord(0, 1, GoneReason.LEFT, 120, 4.0),
]


def fill(folder: Path, records: list[Record]) -> Index:
    index = Index(folder, len(records))
    for lsn, record in enumerate(records, start=1):
        index.add(lsn, record)
    index.commit()
    return index


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(folder / "index.sqlite")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def everything(folder: Path) -> list[list[tuple[object, ...]]]:
    return [rows(folder, f"SELECT * FROM {table}") for table in ("merges", "settlements", "members", "leases", "seen")]


def test_records_become_rows(tmp_path: Path) -> None:
    fill(tmp_path, RECORDS).close()
    assert rows(tmp_path, "SELECT fragment, version, contributors, tokens FROM merges") == [(3, 1, 2, 150)]
    settled = rows(tmp_path, "SELECT learner, incarnation, sequence, outcome, reason FROM settlements")
    assert settled == [(0, 1, 1, "merged", None), (2, 5, 7, "merged", None), (0, 1, 2, "refused", "NonFinite")]
    assert rows(tmp_path, "SELECT event FROM members") == [("admit",), ("Left",)]
    assert rows(tmp_path, "SELECT pass, start, stop FROM leases") == [(0, 0, 8), (1, 0, 2)]


def test_a_record_added_twice_is_there_once(tmp_path: Path) -> None:
    fill(tmp_path, RECORDS).close()
    before = everything(tmp_path)
    fill(tmp_path, RECORDS).close()
    assert everything(tmp_path) == before


def test_a_deleted_index_is_rebuilt_from_the_same_records(tmp_path: Path) -> None:
    fill(tmp_path, RECORDS).close()
    before = everything(tmp_path)
    (tmp_path / "index.sqlite").unlink()
    fill(tmp_path, RECORDS).close()
    assert everything(tmp_path) == before


def test_rows_behind_the_end_of_the_log_are_dropped(tmp_path: Path) -> None:
    fill(tmp_path, RECORDS).close()
    Index(tmp_path, 2).close()
    assert rows(tmp_path, "SELECT lsn FROM seen") == [(2,)]
    assert rows(tmp_path, "SELECT count(*) FROM merges") == [(0,)]
    assert rows(tmp_path, "SELECT event FROM members") == [("admit",)]


def test_a_file_that_is_no_database_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"not a database at all, not a database at all" * 100)
    fill(tmp_path, RECORDS).close()
    assert rows(tmp_path, "SELECT count(*) FROM merges") == [(1,)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_another_writer_costs_the_index_until_the_next_start_and_nobody_else_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = fill(tmp_path, RECORDS[:1])
    other = sqlite3.connect(tmp_path / "index.sqlite")
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    for lsn, record in enumerate(RECORDS[1:], start=2):
        index.add(lsn, record)
    index.commit()
    index.close()
    assert time.monotonic() - began < 2.5  # the engine's thread: far below the 5 s of sqlite's own patience
    (said,) = warnings(caplog)
    assert said.startswith(str(tmp_path / "index.sqlite"))
    assert "until the next start" in said
    other.close()
    fill(tmp_path, RECORDS).close()
    assert rows(tmp_path, "SELECT lsn FROM seen") == [(len(RECORDS),)]


def test_an_index_in_use_at_the_start_is_left_to_its_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, RECORDS).close()
    other = sqlite3.connect(tmp_path / "index.sqlite")
    other.execute("BEGIN IMMEDIATE")
    fill(tmp_path, RECORDS).close()
    assert len(warnings(caplog)) == 1
    other.close()
    assert rows(tmp_path, "SELECT lsn FROM seen") == [(len(RECORDS),)]


def test_a_full_disk_costs_the_index_and_nobody_else_anything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = fill(tmp_path, RECORDS[:1])
    large = replace(MERGE, branch="x" * 2_000_000)
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, kept[1]))
    try:
        for lsn in range(2, 5):
            index.add(lsn, large)
            index.commit()
        index.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, previous)
    assert len(warnings(caplog)) == 1


def test_a_place_that_cannot_be_opened_costs_the_index_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "index.sqlite").mkdir()
    fill(tmp_path, RECORDS).close()
    assert len(warnings(caplog)) == 1


def test_every_kind_of_record_survives_the_round_trip() -> None:
    for record in RECORDS:
        assert parse_record(dump_record(record)) == record
