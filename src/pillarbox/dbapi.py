"""The door for plain PEP 249 connections: Outbox and Inbox on the caller's own connection. sqlite3 today.

The SQL follows the connection's own module. Nothing is committed here, and no second connection is opened.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar, Unpack
from uuid import UUID

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, PlaceOptions, Rows, Statement, insertion, plain_insertion
from pillarbox.core.sqlite_facts import LEGACY, check_transaction, error_of
from pillarbox.core.wording import a_kind_of
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.inbox import programs
from pillarbox.inbox.inbox import Registry, message_key
from pillarbox.inbox.statements import texts_of
from pillarbox.inbox.steps import Call, Program, call_sync, drive, guarded, refused_at_commit
from pillarbox.tracing import with_trace

R = TypeVar("R")


class Outbox:
    """Where an application puts events, in its own transaction.

    >>> outbox = Outbox()
    >>> with connection:                                                            # doctest: +SKIP
    ...     connection.execute("INSERT INTO orders (id, total) VALUES (7, 42)")
    ...     outbox.add(connection, Event("OrderPlaced", {"total": 42}, aggregate=("order", 7)))
    """

    def __init__(self, **place: Unpack[PlaceOptions]) -> None:
        self._place = Place(**place)

    def add(self, connection: sqlite3.Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        """Add events in the connection's transaction; they are published if, and only if, it commits."""
        _check_connection(connection)
        added = with_trace(events)
        try:
            if (plain := plain_insertion(added, self._place, on_duplicate)) is not None:
                _run(connection, plain)
            else:
                drive(insertion(added, self._place, on_duplicate), lambda statement: _run(connection, statement))
        except sqlite3.Error as error:  # not with _failures: this is the path that every event pays for
            _raise_ours(connection, error)


class Inbox(Registry[sqlite3.Connection, None]):
    """Receives events for one consumer, each once. `opener` gives a connection; every worker thread keeps one.

    >>> inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))
    >>> @inbox.handler("OrderPlaced")
    ... def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
    ...     connection.execute("INSERT INTO invoices (order_id) VALUES (?)", [event.payload["order_id"]])
    """

    is_async: Literal[False] = False
    most_workers = 1
    """SQLite has one writer at a time."""

    def __init__(self, consumer: str, opener: Callable[[], sqlite3.Connection], *, prefix: str = "pillarbox_") -> None:
        _check_opener(opener)
        super().__init__(consumer, prefix, takes_async=False)
        self.texts = texts_of(consumer, "sqlite", "?", prefix)
        self._opener, self._mine = opener, threading.local()

    def first_time(self, connection: sqlite3.Connection, message_id: str | UUID) -> bool:
        """Note a message in the connection's transaction; False if this consumer has it already."""
        _check_connection(connection)
        with _failures(connection):
            program = programs.first_time(self.texts, message_key(message_id))
            return drive(program, lambda statement: _run(connection, statement))

    def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own on this thread's connection; for the consumer."""
        connection = self._connection()

        def run(statement: Statement) -> Rows:  # not with _failures, here and below: every event pays for it
            try:
                return _run(connection, statement)
            except sqlite3.Error as error:
                _raise_ours(connection, error)

        try:
            _begin(connection, "BEGIN" if reading else "BEGIN IMMEDIATE")
            result = drive(program, run, partial(_call, connection))
            _commit(connection)
        except sqlite3.Error as error:
            self._roll_back(connection)
            _raise_ours(connection, error)
        except BaseException:
            self._roll_back(connection)
            raise
        return result

    def close(self) -> None:
        """Close this thread's connection."""
        connection: sqlite3.Connection | None = self._mine.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = self._mine.__dict__.get("connection")
        if connection is None:
            try:
                connection = self._opener()
            except sqlite3.Error as error:
                ours = error_of(error, "", "")
                if isinstance(ours, StoreUnavailable):  # nobody has said yet which file it is
                    ours = StoreUnavailable(f"the inbox's opener cannot open its database: {error}")
                raise ours from error
            _check_module(connection)
            self._mine.connection = connection
        return connection

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            _end(connection, "ROLLBACK")
        except sqlite3.Error:  # it is broken: the next program opens another
            self.close()


def _check_opener(opener: object) -> None:
    if isinstance(opener, sqlite3.Connection) or not callable(opener):  # a connection can be called, too
        raise ConfigError(
            f"opener: {a_kind_of(opener)} opens nothing: give a function that opens a connection,"
            " for example lambda: sqlite3.connect('billing.db')"
        )


def _run(connection: sqlite3.Connection, statement: Statement) -> Rows:
    if statement.rows is not None:
        if len(statement.rows) == 1:
            connection.execute(statement.sql, statement.rows[0])
        else:
            connection.executemany(statement.sql, statement.rows)
        return ()
    return connection.execute(statement.sql, statement.parameters).fetchall()


def _begin(connection: sqlite3.Connection, how: str) -> None:
    if connection.in_transaction:  # autocommit=False begins by itself; nothing has been read or written in it yet
        _end(connection, "ROLLBACK")
    if not connection.in_transaction:
        connection.execute(how)


def _end(connection: sqlite3.Connection, how: Literal["COMMIT", "ROLLBACK"]) -> None:
    if _mode(connection) is True:  # its methods do nothing in this mode
        if connection.in_transaction:
            connection.execute(how)
    elif how == "COMMIT":
        connection.commit()
    else:
        connection.rollback()


def _commit(connection: sqlite3.Connection) -> None:
    try:
        _end(connection, "COMMIT")
    except sqlite3.IntegrityError as error:
        raise refused_at_commit(error) from error


def _call(connection: sqlite3.Connection, step: Call) -> object:
    """Call a handler; turn only those of its errors into ours that mean: the database is away, locked or full."""
    try:
        if not step.shared:
            return call_sync(step, connection)
        with guarded(connection, step):
            return call_sync(step, connection)
    except sqlite3.Error as error:
        ours = error_of(error, _file(connection), _begin_advice(connection))
        if isinstance(ours, StoreUnavailable):
            raise ours from error
        raise


def _door_for(library: str) -> str:
    """Say which door takes a connection of another library."""
    if library in ("psycopg", "asyncpg"):
        return f"for {library} take pillarbox.{library}"
    return "for SQLAlchemy take pillarbox.sqlalchemy, for Django pillarbox.django"


def _check_connection(connection: sqlite3.Connection) -> None:
    _check_module(connection)
    if not connection.in_transaction:
        check_transaction(connection, _cure(connection))


def _check_module(connection: object) -> None:
    if not isinstance(connection, sqlite3.Connection):
        kind = type(connection)
        raise ConfigError(
            f"{a_kind_of(connection)} is no connection that pillarbox.dbapi knows: it takes"
            f" sqlite3.Connection; {_door_for(kind.__module__.partition('.')[0])}"
        )


def _cure(connection: sqlite3.Connection) -> str:
    """Say how a transaction is begun in this connection's mode."""
    if _mode(connection) is True:
        return "run connection.execute('BEGIN IMMEDIATE') first, or connect with autocommit=False"
    return "run connection.execute('BEGIN IMMEDIATE') first, or connect with isolation_level='IMMEDIATE'"


def _begin_advice(connection: sqlite3.Connection) -> str:
    if _mode(connection) is False:
        return (
            "with autocommit=False, write before you read, or connect with autocommit=True and run"
            " connection.execute('BEGIN IMMEDIATE')"
        )
    return "run connection.execute('BEGIN IMMEDIATE') before the first SELECT"


def _mode(connection: sqlite3.Connection) -> bool | int:
    mode: bool | int = getattr(connection, "autocommit", LEGACY)
    return mode


@contextmanager
def _failures(connection: sqlite3.Connection) -> Iterator[None]:
    """Turn sqlite3's errors into ours; its ProgrammingError is the caller's own and stays."""
    try:
        yield
    except sqlite3.Error as error:
        _raise_ours(connection, error)


def _raise_ours(connection: sqlite3.Connection, error: sqlite3.Error) -> NoReturn:
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        raise error
    raise error_of(error, _file(connection), _begin_advice(connection)) from error


def _file(connection: sqlite3.Connection) -> str:
    try:
        return next((str(file) for _, name, file in connection.execute("PRAGMA database_list") if name == "main"), "")
    except sqlite3.Error:  # the connection cannot even say that
        return ""
