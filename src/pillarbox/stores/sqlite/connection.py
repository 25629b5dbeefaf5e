"""One thread that owns one connection. Every operation of the store is one call into it, so they never overlap.

A second connection stays on the event loop's thread and only ever asks `PRAGMA data_version` (5 µs): the doorbell.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from pillarbox.errors import ConfigError, LaneLost, SchemaMismatch, StoreError, StoreUnavailable
from pillarbox.stores.sqlite.file_system import check_local

PATIENCE = 5.0
"""Seconds that a statement waits for another writer."""

P = ParamSpec("P")
R = TypeVar("R")


class Connection:
    """A database file, opened when it is first needed and there; made only by `create`."""

    def __init__(self, path: str) -> None:
        if path in ("", ":memory:"):
            raise ConfigError("database: a store needs a file that several processes can open: sqlite:///shop.db")
        self.path = path
        self._file = os.path.abspath(path)  # the working directory may change
        self.opened = 0
        """How often the database was opened: once more whenever the file was replaced."""
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._bell: sqlite3.Connection | None = None
        self._bell_identity: tuple[int, int] | None = None

    async def open(self) -> None:
        """Connect, unless there is no file yet. Refuses what cannot work, with advice."""
        check_place(self.path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pillarbox sqlite")
        if os.path.exists(self.path):
            await self.run(_touch)

    async def run(self, work: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Do one piece of work in the thread, on its connection."""

        def job() -> R:
            with mapped(self.path):
                connection = self._connected()
                try:
                    return work(connection, *args, **named)
                except sqlite3.OperationalError as error:
                    if not str(error).startswith("Could not decode to UTF-8"):
                        raise
                with keeping_odd_bytes(connection):
                    return work(connection, *args, **named)

        return await self._in_thread(job)

    async def create(self) -> None:
        """Make the file, if it is not there."""
        await self._in_thread(lambda: self._connected(create=True))

    async def close(self) -> None:
        """Disconnect; what goes on in the thread is finished first."""
        self._close_bell()
        if self._thread is not None:
            await self._in_thread(self._disconnect)
            self._thread.shutdown(wait=False)
            self._thread = None

    def bell(self) -> object:
        """Give what changes when anybody has committed; None while there is no file. On the loop's thread."""
        with mapped(self.path):
            identity = _identity(self._file)
            if identity != self._bell_identity:
                self._close_bell()
            if identity is None:
                return None
            if self._bell is None:
                self._bell = _connect(self._file, create=False, patience=0.05)
                self._bell.execute("PRAGMA query_only = 1")
                self._bell_identity = identity
            return identity, self._bell.execute("PRAGMA data_version").fetchone()[0]

    def _close_bell(self) -> None:
        if self._bell is not None:
            self._bell.close()
        self._bell = self._bell_identity = None

    async def _in_thread(self, job: Callable[[], R]) -> R:
        if self._thread is None:
            raise StoreError(f"the store on {self.path} is not open")
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    def _connected(self, *, create: bool = False) -> sqlite3.Connection:
        identity = _identity(self._file)
        if self._connection is not None and identity == self._identity:
            return self._connection
        self._disconnect()
        if identity is None and not create:
            if self.opened:
                raise StoreUnavailable(f"the database {self.path} is gone: somebody moved or deleted it; put it back")
            raise SchemaMismatch(f"{no_file(self.path)}: {cure(self.path)}")
        with mapped(self.path):
            self._connection = _connect(self._file, create=create, patience=PATIENCE)
        self._identity = identity or _identity(self._file)
        self.opened += 1
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_place(path: str) -> None:
    """Refuse a path where SQLite's locks or files cannot work."""
    directory = Path(path).resolve().parent
    if not directory.is_dir():
        raise ConfigError(f"database: {path}: the directory {directory} does not exist")
    if os.path.isdir(path):
        raise ConfigError(f"database: {path} is a directory, not a file")
    check_local(path)
    # SQLite needs to make -wal and -shm beside the file, and would open a file that it may not write read-only.
    for needed in (str(directory), path):
        if os.path.exists(needed) and not os.access(needed, os.W_OK):
            raise ConfigError(f"database: {path}: {needed} is read-only for this user; give it the right to write")


def _connect(path: str, *, create: bool, patience: float) -> sqlite3.Connection:
    mode = "rwc" if create else "rw"
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}", uri=True, timeout=patience, isolation_level=None, cached_statements=256
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _identity(path: str) -> tuple[int, int] | None:
    """Tell one file from another of the same name; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def keeping_odd_bytes(connection: sqlite3.Connection) -> Iterator[None]:
    """Read text that is no UTF-8 too, as surrogates: a plain INSERT may have written any bytes."""
    connection.text_factory = lambda text: text.decode(errors="surrogateescape")
    try:
        yield
    finally:
        connection.text_factory = str


def _touch(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA schema_version").fetchone()


@contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[None]:
    """See one state of the database in all statements within."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")  # nothing was written


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Be the one writer, and commit; an error within undoes everything."""
    _wait_for_the_turn(connection)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def writing_what_is_remembered(connection: sqlite3.Connection) -> Iterator[None]:
    """Write what the relay has in memory too: where a commit failed that may have happened, raise LaneLost."""
    committing = False
    try:
        with writing(connection):
            yield
            committing = True
    except sqlite3.Error as error:
        if not committing or error.sqlite_errorcode & 0xFF in _UNDONE:
            raise
        raise LaneLost(
            f"the database failed to commit, and may have done so: {error}; what is stored counts"
        ) from error


_UNDONE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
"""With these a commit has not happened: to settle once more is enough, and nothing is published again."""


def _wait_for_the_turn(connection: sqlite3.Connection) -> None:
    """Begin to write. SQLite's own waiting naps for up to 100 ms, in which busy writers take turn after turn."""
    deadline = time.monotonic() + PATIENCE
    connection.execute("PRAGMA busy_timeout = 1")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")


_ADVICE = {
    sqlite3.SQLITE_BUSY: "another process has been writing for long; look for a transaction that was left open",
    sqlite3.SQLITE_LOCKED: "another process has been writing for long; look for a transaction that was left open",
    sqlite3.SQLITE_FULL: "the disk is full: make room; nothing is lost, it goes on by itself",
    sqlite3.SQLITE_IOERR: "the disk or the file system fails: look at the system's log; nothing is recorded meanwhile",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: does it exist, and may this user read and write it?",
    sqlite3.SQLITE_READONLY: "it is read-only: give this user the right to write the file and its directory",
}


@contextmanager
def mapped(path: str) -> Iterator[None]:
    """Turn SQLite's errors into ours, with advice."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise StoreError(f"{path} is not an SQLite database; look at the path in the setting database") from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise StoreError(f"the database {path} is damaged: {error}; restore it from a backup") from error
        if code in _ADVICE:
            raise StoreUnavailable(f"the database {path} is not available: {error}; {_ADVICE[code]}") from error
        if str(error).startswith(("no such table", "no such column", "table ")):
            raise SchemaMismatch(f"{path}: {error}: {cure(path)}") from error
        raise StoreError(f"the database {path} refused: {error}") from error


def no_file(path: str) -> str:
    """Say that there is no file."""
    return f"there is no database {path} yet"


def cure(path: str, flags: str = "") -> str:
    """Name the command that makes the tables."""
    return f"run `pillarbox migrate up --database sqlite:///{path}{flags}`"
