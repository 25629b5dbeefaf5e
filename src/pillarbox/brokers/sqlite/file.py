"""The broker's file: its tables, how it is opened, and what its errors mean."""

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from pillarbox.errors import BrokerUnavailable, ConfigError, SchemaMismatch

VERSION = 1

# Instants are microseconds since 1970. One writer at a time, so the order of ids is the order of commits.
SCHEMA = f"""
CREATE TABLE messages (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,   -- AUTOINCREMENT: a place is never used twice, not even after pruning
    topic     TEXT NOT NULL,
    partition INTEGER NOT NULL,
    key       TEXT,
    headers   TEXT NOT NULL,                       -- a JSON object
    body      BLOB NOT NULL,
    at        INTEGER NOT NULL
);
CREATE INDEX messages_partition ON messages (topic, partition, id);

-- A consumer's place in each partition. The epoch is new with every taking and fences a former owner.
CREATE TABLE positions (
    consumer   TEXT NOT NULL,
    topic      TEXT NOT NULL,
    partition  INTEGER NOT NULL,
    position   INTEGER NOT NULL DEFAULT 0,         -- everything up to here is acknowledged
    owner      TEXT,
    epoch      TEXT NOT NULL DEFAULT '',
    busy       INTEGER NOT NULL DEFAULT 0,         -- the owner has something in flight
    suspect_to INTEGER NOT NULL DEFAULT 0,         -- up to here somebody may have received it and not said so
    PRIMARY KEY (consumer, topic, partition)
) WITHOUT ROWID;

CREATE TABLE consumers (
    consumer TEXT PRIMARY KEY,
    seen_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- A member also holds the kernel's lock on byte `slot` of the file <this file>-consumers: free means dead.
CREATE TABLE members (
    slot     INTEGER PRIMARY KEY,
    consumer TEXT NOT NULL,
    name     TEXT NOT NULL UNIQUE,
    topics   TEXT NOT NULL,                        -- a JSON array
    seen_at  INTEGER NOT NULL
);

CREATE TABLE broker (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO broker VALUES ('version', '{VERSION}');
"""


_CHANGED = re.compile("no such table|no such column|has no column|Could not decode to UTF-8")
"""What SQLite says of tables, or of texts in them, that somebody else has changed."""


def damaged(path: Path, how: str) -> ConfigError:
    """Give the error for a file that is not as a broker made it."""
    return ConfigError(f"broker: {path} is damaged ({how}); restore it, or move it away and replay the events")


@contextmanager
def broker_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours: a file that is not as we made it cannot be cured by waiting, the rest can."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise ConfigError(f"broker: {path} is not a SQLite database; name another file") from error
        if code == sqlite3.SQLITE_CORRUPT or isinstance(error, sqlite3.IntegrityError) or _CHANGED.search(str(error)):
            raise damaged(path, str(error)) from error
        if isinstance(error, sqlite3.OperationalError) or code == sqlite3.SQLITE_FULL:
            raise BrokerUnavailable(f"the broker's file {path} cannot be used now: {error}") from error
        raise


def now() -> int:
    """Give the time as the tables keep it."""
    return time.time_ns() // 1000


def identity(path: Path) -> tuple[int, int] | None:
    """Say which file stands at this path now: SQLite itself would go on with a deleted one, into the void."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def connect(path: Path, *, durable: bool, timeout: float) -> sqlite3.Connection:
    """Open the file and make its tables if it is new; use inside `broker_errors`."""
    _check_place(path)
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, time.monotonic() + timeout)
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    except BaseException:
        connection.close()
        raise
    return connection


def check(path: Path) -> None:
    """Raise ConfigError or SchemaMismatch if the file that is there can never be used; says nothing of a new one."""
    try:
        with broker_errors(path):
            connect(path, durable=False, timeout=1.0).close()
    except BrokerUnavailable:
        pass  # whether it works is seen when it is used


def look(path: Path) -> None:
    """Raise BrokerUnavailable if the file cannot be used, or could not be made; make and change nothing."""
    try:
        with broker_errors(path):
            _check_place(path)
            if path.exists():
                # not rwc: one that goes away meanwhile is not made anew
                with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=1.0)) as connection:
                    _has_tables(connection, path)
    except (ConfigError, SchemaMismatch) as error:
        raise BrokerUnavailable(str(error).removeprefix("broker: ")) from error
    for place in (path.parent, path) if path.exists() else (path.parent,):
        if not os.access(place, os.W_OK):
            raise BrokerUnavailable(f"{place} cannot be written to by this user; allow it, or name another file")


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"broker: the directory {path.parent} does not exist; create it, or name another file")


def check_still_there(path: Path) -> None:
    """Raise BrokerUnavailable if the directory has vanished under somebody who used it: it may be mounted again."""
    if not path.parent.is_dir():
        raise BrokerUnavailable(f"the directory {path.parent} of the broker's file is gone; it is waited for")


def _prepare(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    if not _has_tables(connection, path):
        _use_wal(connection, deadline)
        with transaction(connection):
            if not _has_tables(connection, path):  # nobody else was faster
                for statement in SCHEMA.split(";\n"):
                    connection.execute(statement)
    _use_wal(connection, deadline)


def _has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Look whether the file is a broker's file of our version; False if it is empty."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return False
    if not {"broker", "messages", "positions"} <= tables:
        raise ConfigError(f"broker: {path} is a database, but not a broker's file; name a file of its own")
    (version,) = connection.execute("SELECT value FROM broker WHERE name = 'version'").fetchone() or (None,)
    if version is None or not str(version).isdecimal():
        raise damaged(path, f"its version is {version!r:.40}, and no number")
    if int(version) > VERSION:
        raise SchemaMismatch(
            f"the broker's file {path} has version {version}, this release knows {VERSION}: upgrade pillarbox"
        )
    return True


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Switch to the write-ahead log; SQLite does not apply its own patience to this switch."""
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise ConfigError(f"broker: the file system does not support SQLite's write-ahead log (mode {mode!r})")
        return


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write in one transaction, which takes the write lock at once: waiting later would fail, not wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
