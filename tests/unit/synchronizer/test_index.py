"""The index says what the log says, and can be lost."""

import sqlite3
from pathlib import Path

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
RECORDS: list[Record] = [
    AdmitRecord(0, 1, "here", 1.0),
    LeaseRecord(0, 1, 1, 0, 4, 8, 1, 40, 0, ((0, 0, 8), (1, 0, 2)), False),
    MergeRecord(3, 4, 1, "everyone", CONTRIBUTORS, "rda", "bodies", 1, 2, "d" * 64, 0.1, 5.0, 3, 0.01, 2.0),
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
    index = Index(tmp_path, 2)
    assert index.seen == 2
    index.close()
    assert rows(tmp_path, "SELECT count(*) FROM merges") == [(0,)]
    assert rows(tmp_path, "SELECT event FROM members") == [("admit",)]


def test_a_file_that_is_no_database_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"not a database at all, not a database at all" * 100)
    fill(tmp_path, RECORDS).close()
    assert rows(tmp_path, "SELECT count(*) FROM merges") == [(1,)]


def test_every_kind_of_record_survives_the_round_trip() -> None:
    for record in RECORDS:
        assert parse_record(dump_record(record)) == record
