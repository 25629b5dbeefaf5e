"""The bank: the business that is tortured, on SQLite or PostgreSQL. Accounts with versions, a journal, and a ledger.

accounts    changed by the writers under a lock of the application's own: its version says which change it was
journal     a row per change, so it is there if and only if the change committed
ledger      what consumers have booked; no unique index, so an effect that came twice would show
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.torture.directory import remove_file

SCHEMA = "pillarbox_torture"
"""Where everything is, on PostgreSQL: a schema of its own, dropped before and after."""
SHARED, OWN = 30, 5
"""So many accounts all writers change, and so many each one has to itself, for transactions that stay open."""

BUSINESS = """
CREATE TABLE {p}accounts (id integer PRIMARY KEY, version integer NOT NULL DEFAULT 0);
CREATE TABLE {p}journal (change text PRIMARY KEY);
"""
LEDGER = """
CREATE TABLE {p}ledger (
    id {identity}, event_id text NOT NULL, aggregate text NOT NULL, contents text NOT NULL
);
"""


class Bank(Protocol):
    """One database, as writers, consumers and the judge use it: connections of its own driver, and plain SQL."""

    away: tuple[type[Exception], ...]
    """What its driver raises while the server is away."""

    def connect(self) -> Any: ...
    def begin(self, connection: Any, *, durable: bool) -> None: ...
    def run(self, connection: Any, sql: str, *parameters: object) -> list[tuple[Any, ...]]: ...
    def outbox(self, topic: str, max_payload: int) -> Any: ...
    def inbox(self, consumer: str) -> Any: ...
    def make(self, writers: int, *, business: bool, ledger: bool) -> None: ...
    def drop(self) -> None:
        """Remove what earlier runs have left here, or this one."""


def bank_at(url: str) -> Bank:
    """Give the bank at a database's URL."""
    if url.startswith("sqlite:///"):
        return SqliteBank(Path(url.removeprefix("sqlite:///")))
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresBank(url)
    raise ConfigError("database: the torture knows sqlite:///file and postgresql://…")


class SqliteBank:
    """A bank in a file."""

    away: tuple[type[Exception], ...] = ()

    def __init__(self, file: Path) -> None:
        self._file = file

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=60, isolation_level=None)

    def begin(self, connection: Any, *, durable: bool) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def run(self, connection: Any, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = connection.execute(sql.format(p="").replace("%s", "?"), parameters).fetchall()
        return rows

    def outbox(self, topic: str, max_payload: int) -> Any:
        from pillarbox.dbapi import Outbox

        return Outbox(topic=topic, max_payload=max_payload)

    def inbox(self, consumer: str) -> Any:
        from pillarbox.dbapi import Inbox

        return Inbox(consumer, lambda: sqlite3.connect(self._file, timeout=60))

    def make(self, writers: int, *, business: bool, ledger: bool) -> None:
        connection = self.connect()
        for statement in _tables("", "integer PRIMARY KEY AUTOINCREMENT", business=business, ledger=ledger):
            connection.executescript(statement)
        if business:
            connection.executemany("INSERT INTO accounts (id) VALUES (?)", [[n] for n in range(SHARED + writers * OWN)])
        connection.close()

    def drop(self) -> None:
        """The file is the run's own."""
        remove_file(self._file)


class PostgresBank:
    """A bank in a schema of its own."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtra("postgres", "a postgresql:// database") from error

        self._url = url
        self._psycopg: Any = psycopg
        self.away: tuple[type[Exception], ...] = (psycopg.OperationalError,)

    def connect(self) -> Any:
        # Through a pooler in transaction mode nothing can be prepared.
        return self._psycopg.connect(self._url, autocommit=True, connect_timeout=5, prepare_threshold=None)

    def begin(self, connection: Any, *, durable: bool) -> None:
        connection.execute("BEGIN")
        if not durable:
            connection.execute("SET LOCAL synchronous_commit = off")

    def run(self, connection: Any, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = connection.execute(sql.format(p=f"{SCHEMA}."), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def outbox(self, topic: str, max_payload: int) -> Any:
        from pillarbox.psycopg import Outbox

        return Outbox(schema=SCHEMA, topic=topic, max_payload=max_payload)

    def inbox(self, consumer: str) -> Any:
        from pillarbox.psycopg import Inbox

        return Inbox(
            consumer,
            lambda: self._psycopg.connect(self._url, connect_timeout=5, prepare_threshold=None),
            schema=SCHEMA,
        )

    def make(self, writers: int, *, business: bool, ledger: bool) -> None:
        with self.connect() as connection:
            for statement in _tables(
                f"{SCHEMA}.", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", business=business, ledger=ledger
            ):
                connection.execute(statement)
            if business:
                self.run(
                    connection,
                    "INSERT INTO {p}accounts (id) SELECT generate_series(0, %s - 1)",
                    SHARED + writers * OWN,
                )

    def drop(self) -> None:
        """Remove everything that a run has made here."""
        with self.connect() as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def _tables(place: str, identity: str, *, business: bool, ledger: bool) -> Iterable[str]:
    texts: Sequence[str] = [*([BUSINESS] if business else []), *([LEDGER] if ledger else [])]
    return [text.format(p=place, identity=identity) for text in texts]
