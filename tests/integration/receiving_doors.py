"""Every door that receives, on each of its databases, with handlers that are written once: as a list of what they do.

A string is a statement, an exception is raised, an event is added to the outbox; `Swallowed("…")` is a statement whose
error nobody hears of.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

import pillarbox.asyncpg
import pillarbox.dbapi
import pillarbox.django
import pillarbox.psycopg
import pillarbox.sqlalchemy
from pillarbox.core.event import Event
from pillarbox.stores.sqlite.schema import Tables
from tests.integration.django_settings import django_database


class Swallowed(str):
    """A statement that fails, and nobody hears of it."""

    __slots__ = ()


class Door(NamedTuple):
    """A door: how its inbox is made, how a handler runs a statement with what it is given, closes that, and adds an
    event to the outbox."""

    name: str
    inbox: Callable[[str], Any]
    run: Callable[[Any, str], Any]
    close: Callable[[Any], Any]
    add: Callable[[Any, Event[Any]], Any]


Act = str | BaseException | Event[Any] | Callable[[], object] | None
Acts = Callable[[Event[Any]], Sequence[Act]]
CLOSE = "close the connection"


def _django(url: str) -> pillarbox.django.Inbox:
    return pillarbox.django.Inbox("billing", django_database(url))


def _async_sessions(driver: str) -> Callable[[str], Any]:
    def inbox(url: str) -> Any:
        engine = create_async_engine(url.replace("postgresql", f"postgresql+{driver}", 1), poolclass=NullPool)
        return pillarbox.sqlalchemy.AsyncInbox("billing", async_sessionmaker(engine))

    return inbox


def _sessions(url: str) -> Any:
    engine = sa.create_engine(url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool)
    return pillarbox.sqlalchemy.Inbox("billing", sessionmaker(engine))


DOORS = (
    Door(
        "psycopg",
        lambda url: pillarbox.psycopg.Inbox("billing", lambda: psycopg.connect(url)),
        lambda connection, sql: connection.execute(sql.encode()),
        lambda connection: connection.close(),
        pillarbox.psycopg.Outbox().add,
    ),
    Door(
        "psycopg async",
        lambda url: pillarbox.psycopg.AsyncInbox("billing", lambda: psycopg.AsyncConnection.connect(url)),
        lambda connection, sql: connection.execute(sql.encode()),
        lambda connection: connection.close(),
        pillarbox.psycopg.AsyncOutbox().add,
    ),
    Door(
        "asyncpg",
        lambda url: pillarbox.asyncpg.Inbox("billing", lambda: asyncpg.connect(url)),
        lambda connection, sql: connection.execute(sql),
        lambda connection: connection.close(),
        pillarbox.asyncpg.Outbox().add,
    ),
    Door(
        "sqlalchemy",
        _sessions,
        lambda session, sql: session.execute(sa.text(sql)),
        lambda session: session.close(),
        pillarbox.sqlalchemy.Outbox().add,
    ),
    Door(
        "sqlalchemy async",
        _async_sessions("psycopg"),
        lambda session, sql: session.execute(sa.text(sql)),
        lambda session: session.close(),
        pillarbox.sqlalchemy.AsyncOutbox().add,
    ),
    Door(
        "sqlalchemy asyncpg",
        _async_sessions("asyncpg"),
        lambda session, sql: session.execute(sa.text(sql)),
        lambda session: session.close(),
        pillarbox.sqlalchemy.AsyncOutbox().add,
    ),
    Door(
        "django",
        _django,
        lambda connection, sql: connection.cursor().execute(sql),
        lambda connection: connection.close(),
        lambda connection, event: pillarbox.django.Outbox().add(event, using=connection.alias),
    ),
)


def _keep_foreign_keys(connection: Any, *_: object) -> None:
    connection.execute("PRAGMA foreign_keys = ON")


def _sqlite3(file: str) -> Any:
    connection = sqlite3.connect(file)
    _keep_foreign_keys(connection)
    return connection


def _sqlite_sessions(file: str) -> Any:
    engine = sa.create_engine(f"sqlite:///{file}", poolclass=NullPool)
    sa.event.listen(engine, "connect", _keep_foreign_keys)
    return pillarbox.sqlalchemy.Inbox("billing", sessionmaker(engine))


def _async_sqlite_sessions(file: str) -> Any:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=NullPool)
    sa.event.listen(engine.sync_engine, "connect", _keep_foreign_keys)
    return pillarbox.sqlalchemy.AsyncInbox("billing", async_sessionmaker(engine))


BY_NAME = {door.name: door for door in DOORS}
SQLITE_DOORS = (
    Door(
        "dbapi",
        lambda file: pillarbox.dbapi.Inbox("billing", lambda: _sqlite3(file)),
        lambda connection, sql: connection.execute(sql),
        lambda connection: connection.close(),
        pillarbox.dbapi.Outbox().add,
    ),
    BY_NAME["sqlalchemy"]._replace(inbox=_sqlite_sessions),
    BY_NAME["sqlalchemy async"]._replace(inbox=_async_sqlite_sessions),
    BY_NAME["django"],
)
PLACES = [
    pytest.param((database, door), id=f"{database}, {door.name}")
    for database, doors in (("PostgreSQL", DOORS), ("SQLite", SQLITE_DOORS))
    for door in doors
]
"""Every door on each of its databases."""


def where_of(database: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Make a database with the tables of Pillarbox; give its URL, or its file."""
    if database == "PostgreSQL":
        url: str = request.getfixturevalue("migrated")
        return url
    file = str(folder / "billing.db")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        Tables(file, "pillarbox_").up(db)
    return file


def receiving(door: Door, url: str, acts: Acts, type: str = "OrderPlaced", **options: Any) -> Any:
    """Make an inbox whose handler does what `acts` says of each event."""
    inbox = door.inbox(url)

    def plain(transaction: Any, given: Any) -> None:
        for act in (act for event in _all(given) for act in acts(event)):
            with _keeping(act):
                _do(door, transaction, act)

    async def awaited(transaction: Any, given: Any) -> None:
        for act in (act for event in _all(given) for act in acts(event)):
            with _keeping(act):
                result = _do(door, transaction, act)
                if hasattr(result, "__await__"):
                    await result

    inbox.handler(type, **options)(awaited if inbox.is_async else plain)
    return inbox


def _all(given: Event[Any] | list[Event[Any]]) -> list[Event[Any]]:
    return given if isinstance(given, list) else [given]


def _do(door: Door, transaction: Any, act: Act) -> Any:
    if isinstance(act, BaseException):
        raise act
    if isinstance(act, Event):
        return door.add(transaction, act)
    if act == CLOSE:
        return door.close(transaction)
    return door.run(transaction, str(act)) if isinstance(act, str) else act and act()


@contextmanager
def _keeping(act: Act) -> Iterator[None]:
    try:
        yield
    except Exception:
        if not isinstance(act, Swallowed):
            raise


async def forget(inbox: Any) -> None:
    """Close what an inbox has open on this thread."""
    if inbox.is_async:
        await inbox.close()
    else:
        await asyncio.to_thread(inbox.close)
