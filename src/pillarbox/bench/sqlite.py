"""A place on SQLite: files of its own, in the directory of the user's database."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from pillarbox.bench.load import AGGREGATE, IDS, TYPE, Load
from pillarbox.bench.places import ACCOUNTS, Lane, remove_files
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.errors import StoreError
from pillarbox.settings import Settings

TABLES = """
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE history (account INTEGER NOT NULL, delta INTEGER NOT NULL, at TEXT NOT NULL);
CREATE TABLE applied (n INTEGER NOT NULL);
CREATE TABLE textbook (
    id INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL, aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL, event_type TEXT NOT NULL, payload TEXT NOT NULL, published_at TEXT
);
CREATE INDEX textbook_pending ON textbook (id) WHERE published_at IS NULL;
"""
NEXT = (
    "SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload FROM {p}textbook"
    " WHERE published_at IS NULL ORDER BY id LIMIT 1"
)
MARK = "UPDATE {p}textbook SET published_at = datetime('now') WHERE id = %s"
FILL = """
    INSERT INTO pillarbox_outbox (event_id, aggregate_type, aggregate_id, event_type, topic, payload, content_type)
    VALUES (?, ?, ?, ?, ?, ?, 'application/json')
"""
FILL_TEXTBOOK = """
    INSERT INTO textbook (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (?, ?, ?, ?, ?)
"""
WAIT = 60.0


@dataclass(frozen=True)
class SqlitePlace:
    """Files of our own: an outbox, and an inbox beside it, for each file has one writer at a time."""

    settings: Settings
    topic: str
    writers = 1

    def make(self) -> None:
        for file in (self._file, self._inbox):
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA journal_mode = WAL").fetchone()

    def make_tables(self, connection: Any) -> None:
        """Make what is no part of Pillarbox: the business of writers and consumers, and the textbook's outbox."""
        for file in (self._file, self._inbox):
            with closing(self._connect(file)) as connection:
                connection.executescript(TABLES)
                connection.execute("BEGIN")
                connection.executemany("INSERT INTO accounts VALUES (?, 0)", [(n,) for n in range(ACCOUNTS)])
                connection.execute("COMMIT")

    @property
    def title(self) -> str:
        return f"the files {self._file.with_suffix('')}*"

    @property
    def databases(self) -> Sequence[Settings]:
        return self.settings, replace(self.settings, database=f"sqlite:///{self._inbox}")

    def drop(self) -> None:
        remove_files(self.settings.database)

    @contextmanager
    def failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"SQLite, in {self._file}: {error}") from error

    def connect(self) -> sqlite3.Connection:
        return self._connect(self._file)

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def run(self, connection: Any, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = connection.execute(sql.format(p="").replace("%s", "?"), parameters).fetchall()
        return rows

    def outbox(self) -> Outbox:
        return Outbox(topic=self.topic)

    def inbox(self, consumer: str) -> Inbox:
        return Inbox(consumer, lambda: self._connect(self._inbox))

    def fill(self, connection: Any, load: Load, first: int, count: int) -> None:
        note = load.note
        rows = (
            (f"{IDS}{n:012x}", AGGREGATE, str(n % load.aggregates), TYPE, self.topic, f'{{"n":{n},"note":"{note}"}}')
            for n in range(first, first + count)
        )
        self._insert(connection, FILL, rows)

    def fill_textbook(self, connection: Any, load: Load, count: int) -> None:
        """Give the textbook as much to do."""
        rows = (
            (str(uuid4()), AGGREGATE, str(n % load.aggregates), TYPE, json.dumps({"n": n, "note": load.note}))
            for n in range(count)
        )
        self._insert(connection, FILL_TEXTBOOK, rows)

    def settle_down(self, connection: Any) -> None:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def written(self, connection: Any) -> int | None:
        return None

    def used(self, connection: Any) -> float | None:
        return None  # it works inside the relay

    def lanes(self, connection: Any) -> Sequence[Lane]:
        return [Lane(*row) for row in self.run(connection, "SELECT owner, epoch FROM {p}pillarbox_lanes")]

    @property
    def columns(self) -> str:
        return (
            "event_id, aggregate_type, aggregate_id, event_type, topic, payload, body, content_type, headers,"
            " idempotency_key, number, available_at, occurred_at, created_at"
        )

    @property
    def textbook(self) -> Sequence[str]:
        return NEXT, MARK

    def _insert(self, connection: Any, sql: str, rows: Iterator[tuple[Any, ...]]) -> None:
        mine = not connection.in_transaction
        if mine:
            self.begin(connection)
        connection.executemany(sql, rows)
        if mine:
            connection.execute("COMMIT")

    def _connect(self, file: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(file, timeout=WAIT, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @property
    def _file(self) -> Path:
        return Path((self.settings.database or "").removeprefix("sqlite:///"))

    @property
    def _inbox(self) -> Path:
        return self._file.with_name(f"{self._file.stem}-inbox.db")
