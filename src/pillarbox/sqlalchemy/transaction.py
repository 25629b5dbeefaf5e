"""The caller's transaction: its connection, whether events can be atomic with it, and how statements run on it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pillarbox.core import postgres_facts, sqlite_facts
from pillarbox.core.insert import Rows, Statement
from pillarbox.core.insert_texts import Dialect, Marker
from pillarbox.core.wording import a
from pillarbox.errors import ConfigError, NoTransaction, StoreError, StoreUnavailable

Transaction = Session | scoped_session[Session] | sa.Connection
AsyncTransaction = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection

_DATABASES: dict[tuple[str, str], tuple[Dialect, Marker]] = {
    ("sqlite", "pysqlite"): ("sqlite", "?"),
    ("sqlite", "aiosqlite"): ("sqlite", "?"),
    ("postgresql", "psycopg"): ("postgres", "%s"),
    ("postgresql", "psycopg_async"): ("postgres", "%s"),
    ("postgresql", "asyncpg"): ("postgres", "$"),
}
_LEVELS: dict[Dialect, str] = {"sqlite": "SERIALIZABLE", "postgres": "READ COMMITTED"}
_CURE: dict[Dialect, str] = {
    database: f"leave the engine's isolation_level alone, or begin with execution_options(isolation_level={level!r})"
    for database, level in _LEVELS.items()
}
_BEGIN = (
    "let the engine's connections begin with BEGIN IMMEDIATE (see 'Serializable isolation / Savepoints' in SQLAlchemy's"
    " page on SQLite), or write before you read"
)
_SAVEPOINTS = (
    "write something before begin_nested(), or let the engine send BEGIN itself (see 'Serializable isolation /"
    " Savepoints' in SQLAlchemy's page on SQLite)"
)


def async_half(transaction: AsyncTransaction) -> AsyncSession | AsyncConnection:
    """Refuse what is not async."""
    if isinstance(transaction, async_scoped_session):
        return transaction()
    if isinstance(transaction, AsyncSession | AsyncConnection):
        return transaction
    raise ConfigError(
        f"{a(type(transaction).__name__)} is not async: pillarbox.sqlalchemy.AsyncOutbox and AsyncInbox take an"
        " AsyncSession or an AsyncConnection, Outbox and Inbox the sync ones"
    )


def connection_of(transaction: Transaction) -> sa.Connection:
    """Give the connection on which the caller's transaction is, with what was pending written before us."""
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    if isinstance(transaction, Session):
        transaction.flush()
        connection = transaction.connection()
    elif isinstance(transaction, sa.Connection):
        connection = transaction
    else:
        raise ConfigError(
            f"{a(type(transaction).__name__)} is nothing that pillarbox.sqlalchemy can write to: give a Session or a"
            " Connection; AsyncOutbox and AsyncInbox take the async ones"
        )
    check_transaction(connection)
    return connection


def database_of(connection: sa.Connection | sa.Engine) -> tuple[Dialect, Marker]:
    """Say which database it is, and how its driver writes parameters."""
    name, driver = connection.dialect.name, connection.dialect.driver
    if (known := _DATABASES.get((name, driver))) is None:
        raise ConfigError(
            f"{name}+{driver} is no database that pillarbox.sqlalchemy knows: it writes to sqlite (sqlite+pysqlite,"
            " sqlite+aiosqlite) and postgresql (postgresql+psycopg, postgresql+asyncpg)"
        )
    return known


def check_transaction(connection: sa.Connection) -> None:
    """Raise NoTransaction unless what is written now can still be rolled back."""
    database, _ = database_of(connection)
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise _autocommit(database)
    if not connection.in_transaction():
        connection.begin()
    if database == "postgres":
        driver: Any = connection.connection.dbapi_connection
        if driver.autocommit:  # an engine made with isolation_level="AUTOCOMMIT" shows it here only
            raise _autocommit(database)
        return
    sqlite_facts.check_transaction(connection.connection.driver_connection, _CURE[database])
    if connection.in_nested_transaction() and connection.get_transaction() in _bare:
        raise NoTransaction(
            "this savepoint was opened before the driver had begun a transaction, so its release commits, and no"
            f" rollback takes the event back: {_SAVEPOINTS}"
        )


def _autocommit(database: Dialect) -> NoTransaction:
    return NoTransaction(
        f"this connection is in autocommit, so nothing could be atomic with your changes: {_CURE[database]}"
    )


_bare: WeakSet[sa.RootTransaction] = WeakSet()
"""Transactions in which pysqlite's legacy mode has sent a SAVEPOINT and no BEGIN before it."""


@sa.event.listens_for(sa.Engine, "savepoint")
def _note_savepoint(connection: sa.Connection, name: str) -> None:
    """Notice a savepoint without a transaction around it: only now can it be told."""
    transaction = connection.get_transaction()
    if connection.dialect.name != "sqlite" or not isinstance(transaction, sa.RootTransaction):
        return
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        _bare.add(transaction)
    elif not connection.in_nested_transaction():
        _bare.discard(transaction)


def run(connection: sa.Connection, statement: Statement) -> Rows:
    """Run a statement on the connection; give its rows."""
    if statement.rows is not None:
        rows: Any = statement.rows
        connection.exec_driver_sql(statement.sql, rows)
        return ()
    result = connection.exec_driver_sql(statement.sql, tuple(statement.parameters))
    return result.fetchall() if result.returns_rows else ()


@contextmanager
def failures(engine: sa.Engine) -> Iterator[None]:
    """Turn the driver's errors under our own statements into ours; misuse of the driver is the caller's own."""
    try:
        yield
    except exc.DBAPIError as error:
        misused = isinstance(error, exc.ProgrammingError | exc.InterfaceError)
        said_by_driver = _sqlstate(error) is None and not error.connection_invalidated
        if misused and (engine.dialect.name == "sqlite" or said_by_driver):
            raise
        raise _ours(error, engine.dialect.name, engine.url.database or "") from error


@contextmanager
def outages() -> Iterator[None]:
    """Turn those errors of a handler, or of a commit, into ours that mean: the database is away, locked or full."""
    try:
        yield
    except exc.DBAPIError as error:
        ours = _ours(error, "sqlite" if isinstance(error.orig, sqlite3.Error) else "postgresql", "")
        if isinstance(ours, StoreUnavailable):
            raise ours from error
        raise


def _ours(error: exc.DBAPIError, dialect: str, file: str) -> StoreError:
    original = error.orig if isinstance(error.orig, Exception) else error
    if dialect == "sqlite":
        return sqlite_facts.error_of(original, file, _BEGIN)
    # SQLAlchemy wraps asyncpg's errors once more; the innermost has the plain words.
    return postgres_facts.error_of(original.__cause__ or original, _sqlstate(error))


def _sqlstate(error: exc.DBAPIError) -> str | None:
    code: str | None = getattr(error.orig, "sqlstate", None)
    return code
