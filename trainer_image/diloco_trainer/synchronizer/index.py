"""`index.sqlite`: what the log says, in tables for people and tests.

Built from durable records only, and from nothing else: deleting the file harms nothing, and rows of records that no
longer exist are dropped at the next start. Records that a snapshot has made superfluous stay in the index if they were
in it. The engine never reads it, and no trouble with it (another writer, a full disk) is the engine's: the first error
is logged, and the index left as it is until the next start.
"""

import logging
import sqlite3
from collections.abc import Callable
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
BUSY_SECONDS = 0.1
"""How long the engine waits, once, for somebody else who writes to the file."""

logger = logging.getLogger(__name__)


class Index:
    """Used by one thread. After an error nothing is added any more; no method raises."""

    def __init__(self, folder: Path, last_lsn: int) -> None:
        """Open or create the index of a log whose last record is `last_lsn`; a file that is no database is replaced."""
        self._path = folder / "index.sqlite"
        self._tables: _Tables | None = None
        try:
            self._tables = self._open(last_lsn)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def add(self, lsn: int, record: Record) -> None:
        """Add a durable record; one that is already there is left alone."""
        self._attempt(lambda tables: tables.add(lsn, record))

    def commit(self) -> None:
        """Let readers see what has been added."""
        self._attempt(lambda tables: tables.connection.commit())

    def close(self) -> None:
        self._attempt(lambda tables: tables.close())
        self._tables = None

    def _open(self, last_lsn: int) -> "_Tables":
        try:
            return _Tables(self._path, last_lsn)
        except sqlite3.OperationalError:  # in use or not to be opened: not ours to delete
            raise
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            return _Tables(self._path, last_lsn)

    def _attempt(self, action: "Callable[[_Tables], None]") -> None:
        if self._tables is None:
            return
        try:
            action(self._tables)
        except sqlite3.Error as error:
            self._tables.connection.close()
            self._tables = None
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        logger.warning("%s: nothing is added until the next start, training goes on: %s", self._path, error)


class _Tables:
    """An open database; every method may raise sqlite3.Error."""

    def __init__(self, path: Path, last_lsn: int) -> None:
        self.connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
        try:
            # The log is what is durable: losing or breaking this file costs a rebuild.
            self.connection.execute("PRAGMA synchronous = OFF")
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.executescript(_SCHEMA)
            self._trim(last_lsn)
        except sqlite3.Error:
            self.connection.close()
            raise

    def close(self) -> None:
        self.connection.commit()
        self.connection.close()

    def add(self, lsn: int, record: Record) -> None:
        if lsn <= self._seen():
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
        self.connection.execute("UPDATE seen SET lsn = ?", (lsn,))

    def _seen(self) -> int:
        """Number of the newest record in the index: replay adds those after it."""
        return int(self.connection.execute("SELECT lsn FROM seen").fetchone()[0])

    def _trim(self, last_lsn: int) -> None:
        """Drop rows of records behind the end of the log (they were cut, or the file belongs to another log)."""
        if self._seen() > last_lsn:
            for table in _TABLES:
                self.connection.execute(f"DELETE FROM {table} WHERE lsn > ?", (last_lsn,))
            self.connection.execute("UPDATE seen SET lsn = ?", (last_lsn,))
            self.connection.commit()

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
            self.connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
