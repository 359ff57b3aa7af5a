"""`index.sqlite`: what the log says, in tables for people and tests.

Built from durable records only, and from nothing else: deleting the file harms nothing, and rows of records that no
longer exist are dropped at the next start. Records that a snapshot has made superfluous stay in the index if they were
in it. The engine never reads it.
"""

import sqlite3
from pathlib import Path

from diloco_trainer.synchronizer.records import (
    AdmitRecord,
    GoneRecord,
    LeaseRecord,
    MergeRecord,
    Record,
    RefuseRecord,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS merges (
  lsn INTEGER PRIMARY KEY, wall REAL, fragment INTEGER, version INTEGER, turn INTEGER, reason TEXT, branch TEXT,
  contributors INTEGER, tokens INTEGER, seconds REAL, digest TEXT);
CREATE TABLE IF NOT EXISTS settlements (
  lsn INTEGER, learner INTEGER, incarnation INTEGER, fragment INTEGER, sequence INTEGER, outcome TEXT, version INTEGER,
  reason TEXT, turn INTEGER, base_version INTEGER, c_tokens INTEGER, c_steps INTEGER, weight REAL, norm REAL);
CREATE TABLE IF NOT EXISTS members (
  lsn INTEGER, learner INTEGER, incarnation INTEGER, site TEXT, wall REAL, event TEXT);
CREATE TABLE IF NOT EXISTS leases (
  lsn INTEGER, learner INTEGER, incarnation INTEGER, request_number INTEGER, pass INTEGER, start INTEGER, stop INTEGER);
CREATE TABLE IF NOT EXISTS seen (one INTEGER PRIMARY KEY CHECK (one = 1), lsn INTEGER);
INSERT OR IGNORE INTO seen VALUES (1, 0);
"""
_TABLES = ("merges", "settlements", "members", "leases")


class Index:
    """Used by one thread."""

    def __init__(self, folder: Path, last_lsn: int) -> None:
        """Open or create the index of a log whose last record is `last_lsn`; a file that is no database is replaced."""
        self._path = folder / "index.sqlite"
        try:
            self._connection = self._open()
            self._trim(last_lsn)
        except sqlite3.DatabaseError:
            self._connection.close()
            self._path.unlink()
            self._connection = self._open()

    @property
    def seen(self) -> int:
        """Number of the newest record in the index: replay adds those after it."""
        return int(self._connection.execute("SELECT lsn FROM seen").fetchone()[0])

    def add(self, lsn: int, record: Record) -> None:
        """Add a durable record; one that is already there is left alone."""
        if lsn <= self.seen:
            return
        match record:
            case MergeRecord():
                self._add_merge(lsn, record)
            case RefuseRecord():
                row = (lsn, record.index, record.incarnation, record.fragment, record.sequence, "refused")
                more = (record.newest_version, record.reason, None, None, record.c_tokens, None, None, None)
                self._insert("settlements", [(*row, *more)])
            case AdmitRecord():
                self._insert("members", [(lsn, record.index, record.incarnation, record.site, record.wall, "admit")])
            case GoneRecord():
                self._insert("members", [(lsn, record.index, record.incarnation, None, record.wall, record.reason)])
            case LeaseRecord():
                row3 = (lsn, record.index, record.incarnation, record.request_number)
                self._insert("leases", [(*row3, *part) for part in record.ranges])
            case _:
                pass
        self._connection.execute("UPDATE seen SET lsn = ?", (lsn,))

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.commit()
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(self._path, check_same_thread=False)
        # The log is what is durable: losing or breaking this file costs a rebuild.
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(_SCHEMA)
        return self._connection

    def _trim(self, last_lsn: int) -> None:
        """Drop rows of records behind the end of the log (they were cut, or the file belongs to another log)."""
        if self.seen > last_lsn:
            for table in _TABLES:
                self._connection.execute(f"DELETE FROM {table} WHERE lsn > ?", (last_lsn,))
            self._connection.execute("UPDATE seen SET lsn = ?", (last_lsn,))
            self._connection.commit()

    def _add_merge(self, lsn: int, record: MergeRecord) -> None:
        tokens = sum(item.c_tokens for item in record.contributors)
        row = (lsn, record.wall, record.fragment, record.version, record.turn, record.reason, record.branch)
        self._insert("merges", [(*row, len(record.contributors), tokens, record.seconds, record.digest)])
        rows: list[tuple[object, ...]] = []
        for c in record.contributors:
            about = (c.turn, c.base_version, c.c_tokens, c.c_steps, c.weight, c.norm)
            merged = ("merged", record.version, None)
            rows.append((lsn, c.index, c.incarnation, record.fragment, c.sequence, *merged, *about))
        self._insert("settlements", rows)

    def _insert(self, table: str, rows: list[tuple[object, ...]]) -> None:
        if rows:
            marks = ",".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
