"""The door for SQLAlchemy: Outbox and Inbox on the caller's Session or Connection, and their async twins.

Statements run at once, on the session's own connection, inside its transaction: a savepoint takes its events along.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, overload
from uuid import UUID
from weakref import WeakSet

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, Rows, Statement, insertion
from pillarbox.core.routing import DEFAULT_TOPIC
from pillarbox.core.sqlite_facts import check_transaction, error_of
from pillarbox.errors import ConfigError, MissingExtra, NoTransaction, StoreUnavailable
from pillarbox.inbox import programs
from pillarbox.inbox.inbox import Handlers, message_key
from pillarbox.inbox.programs import Texts
from pillarbox.inbox.statements import sqlite_texts
from pillarbox.inbox.steps import Call, Program, call_async, call_sync, drive, drive_async

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
    from sqlalchemy.orm import Session, scoped_session, sessionmaker
except ImportError as error:
    raise MissingExtra("sqlalchemy", "pillarbox.sqlalchemy") from error

R = TypeVar("R")
M = TypeVar("M")
Transaction = Session | scoped_session[Session] | sa.Connection
AsyncTransaction = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection
Handler = Callable[[Session, Event[M]], None]
AnyHandler = Callable[[AsyncSession, Event[M]], Any] | Callable[[Session, Event[M]], None]

_CURE = "leave the engine's isolation_level alone, or begin with execution_options(isolation_level='SERIALIZABLE')"
_BEGIN = (
    "let the engine's connections begin with BEGIN IMMEDIATE (see 'Serializable isolation / Savepoints' in SQLAlchemy's"
    " page on SQLite), or write before you read"
)
_SAVEPOINTS = (
    "write something before begin_nested(), or let the engine send BEGIN itself (see 'Serializable isolation /"
    " Savepoints' in SQLAlchemy's page on SQLite)"
)


class Outbox:
    """Where an application puts events, in its own transaction.

    >>> outbox = Outbox()
    >>> with Session(engine) as session, session.begin():                           # doctest: +SKIP
    ...     outbox.add(session, Event("OrderPlaced", {"total": 42}, aggregate=("order", 7)))
    """

    def __init__(
        self,
        schema: str = "public",
        topic: str = DEFAULT_TOPIC,
        max_payload: int = 262_144,
        prefix: str = "pillarbox_",
    ) -> None:
        self._place = Place(schema, prefix, topic, max_payload)

    def add(self, transaction: Transaction, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        """Add events in the session's transaction, after what is pending; published if, and only if, it commits."""
        connection = _connection(transaction)
        with _failures(connection.engine):
            drive(insertion(events, self._place, on_duplicate), lambda statement: _run(connection, statement))


class AsyncOutbox:
    """The same for AsyncSession and AsyncConnection.

    >>> outbox = AsyncOutbox()
    """

    def __init__(
        self,
        schema: str = "public",
        topic: str = DEFAULT_TOPIC,
        max_payload: int = 262_144,
        prefix: str = "pillarbox_",
    ) -> None:
        self._outbox = Outbox(schema, topic, max_payload, prefix)

    async def add(
        self, transaction: AsyncTransaction, *events: Event[Any], on_duplicate: OnDuplicate = "raise"
    ) -> None:
        """Add events in the session's transaction, after what is pending; published if, and only if, it commits."""
        await _async_half(transaction).run_sync(lambda sync: self._outbox.add(sync, *events, on_duplicate=on_duplicate))


class Inbox:
    """Receives events for one consumer, each once. `sessions` is a sessionmaker; handlers get the Session.

    >>> inbox = Inbox("billing", sessionmaker(engine))                              # doctest: +SKIP
    """

    is_async: Literal[False] = False

    def __init__(self, consumer: str, sessions: Callable[[], Session], *, prefix: str = "pillarbox_") -> None:
        self.consumer = consumer
        self.handlers = Handlers(consumer, prefix, takes_async=False)
        self._sessions = _check_opener(sessions, "a sessionmaker", unlike=async_sessionmaker)
        self._prefix = prefix

    @overload
    def handler(self, type: str, *, payload: type[M], replays: bool = False) -> Callable[[Handler[M]], Handler[M]]: ...
    @overload
    def handler(
        self, type: str, *, payload: None = None, replays: bool = False
    ) -> Callable[[Handler[Any]], Handler[Any]]: ...
    def handler(self, type: str, *, payload: Any = None, replays: bool = False) -> Any:
        """Register the function for a type of event; its payload is decoded into `payload`, if one is named."""
        return self.handlers.registrar(type, payload, replays)

    def first_time(self, transaction: Transaction, message_id: str | UUID) -> bool:
        """Note a message in the session's transaction; False if this consumer has it already."""
        connection = _connection(transaction)
        with _failures(connection.engine):
            program = programs.first_time(_texts(self.consumer, self._prefix), message_key(message_id))
            return drive(program, lambda statement: _run(connection, statement))

    @property
    def texts(self) -> Texts:
        """The statements for the consumer's database."""
        return _texts(self.consumer, self._prefix)

    @property
    def most_workers(self) -> int | None:
        """SQLite has one writer at a time."""
        return 1

    def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own, in a new session; for the consumer."""
        with self._sessions() as session:
            try:
                result = drive(program, lambda statement: _on(session, statement), lambda call: _call(session, call))
                with _outages():
                    session.commit()
            except BaseException:
                session.rollback()
                raise
            return result

    def close(self) -> None:
        """Every program closes its own session, and the engine's pool is the application's."""


class AsyncInbox:
    """Receives events for one consumer, each once. `sessions` is an async_sessionmaker.

    Async handlers get the AsyncSession; plain functions get its sync Session, and may use it as in a sync program.

    >>> inbox = AsyncInbox("billing", async_sessionmaker(engine))                   # doctest: +SKIP
    """

    is_async: Literal[True] = True

    def __init__(self, consumer: str, sessions: Callable[[], AsyncSession], *, prefix: str = "pillarbox_") -> None:
        self.consumer = consumer
        self.handlers = Handlers(consumer, prefix, takes_async=True)
        self._sessions = _check_opener(sessions, "an async_sessionmaker", unlike=sessionmaker)
        self._prefix = prefix

    @overload
    def handler(
        self, type: str, *, payload: type[M], replays: bool = False
    ) -> Callable[[AnyHandler[M]], AnyHandler[M]]: ...
    @overload
    def handler(
        self, type: str, *, payload: None = None, replays: bool = False
    ) -> Callable[[AnyHandler[Any]], AnyHandler[Any]]: ...
    def handler(self, type: str, *, payload: Any = None, replays: bool = False) -> Any:
        """Register the function for a type of event; its payload is decoded into `payload`, if one is named."""
        return self.handlers.registrar(type, payload, replays)

    async def first_time(self, transaction: AsyncTransaction, message_id: str | UUID) -> bool:
        """Note a message in the session's transaction; False if this consumer has it already."""
        program = programs.first_time(self.texts, message_key(message_id))

        def first_time(sync: Transaction) -> bool:
            connection = _connection(sync)
            with _failures(connection.engine):
                return drive(program, lambda statement: _run(connection, statement))

        return await _async_half(transaction).run_sync(first_time)

    @property
    def texts(self) -> Texts:
        """The statements for the consumer's database."""
        return _texts(self.consumer, self._prefix)

    @property
    def most_workers(self) -> int | None:
        """SQLite has one writer at a time."""
        return 1

    async def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own, in a new session; for the consumer."""
        async with self._sessions() as session:

            async def run(statement: Statement) -> Rows:
                return await session.run_sync(_on, statement)

            async def call(step: Call) -> object:
                return await _call_async(session, step)

            try:
                result = await drive_async(program, run, call)
                with _outages():
                    await session.commit()
            except BaseException:
                await session.rollback()
                raise
            return result


_TIMES = "BETWEEN -62135596800000000 AND 253402300799999999"
_CHECKS = (
    "id > 0",
    "(payload IS NULL) <> (body IS NULL)",
    "event_type <> '' AND topic <> ''",
    "typeof(event_id) = 'text' AND typeof(aggregate_type) = 'text' AND typeof(aggregate_id) = 'text'",
    "typeof(event_type) = 'text' AND typeof(topic) = 'text'",
    "typeof(payload) IN ('text', 'null') AND typeof(body) IN ('blob', 'null')",
    "typeof(content_type) IN ('text', 'null') AND typeof(headers) IN ('text', 'null')",
    "typeof(idempotency_key) IN ('text', 'null')",
    "typeof(number) IN ('integer', 'null') AND number >= 0",
    f"typeof(available_at) IN ('integer', 'null') AND available_at {_TIMES}",
    f"typeof(occurred_at) IN ('integer', 'null') AND occurred_at {_TIMES}",
    "typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND 253402300799999999",
)


def outbox_table(metadata: sa.MetaData, prefix: str = "pillarbox_") -> sa.Table:
    """Put the outbox on the application's own MetaData, so that its migrations (Alembic) know the table."""
    name = f"{prefix}outbox"
    now = sa.text("(CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))")
    uuid = sa.text(
        "(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'"
        " || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(hex(randomblob(2)), 2) || '-'"
        " || hex(randomblob(6))))"
    )
    return sa.Table(
        name,
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("event_id", sa.Text, nullable=False, server_default=uuid),
        sa.Column("aggregate_type", sa.Text, nullable=False, server_default=""),
        sa.Column("aggregate_id", sa.Text, nullable=False, server_default=""),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("payload", sa.Text),
        sa.Column("body", sa.LargeBinary),
        sa.Column("content_type", sa.Text),
        sa.Column("headers", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("number", sa.Integer),
        sa.Column("available_at", sa.Integer),
        sa.Column("occurred_at", sa.Integer),
        sa.Column("created_at", sa.Integer, nullable=False, server_default=now),
        *map(sa.CheckConstraint, _CHECKS),
        sa.Index(f"{name}_event", "event_id"),
        sa.Index(f"{name}_aggregate", "aggregate_type", "aggregate_id", "id"),
        sa.Index(f"{name}_topic", "topic", "id"),
        sqlite_autoincrement=True,
    )


def _texts(consumer: str, prefix: str) -> Texts:
    return Texts(consumer, sqlite_texts(prefix))


def _check_opener(sessions: Callable[[], R], kind: str, *, unlike: type) -> Callable[[], R]:
    if isinstance(sessions, unlike) or not callable(sessions):
        raise ConfigError(f"sessions: {sessions!r:.60} opens no sessions: give {kind}")
    return sessions


def _async_half(transaction: AsyncTransaction) -> AsyncSession | AsyncConnection:
    if isinstance(transaction, async_scoped_session):
        return transaction()
    if isinstance(transaction, AsyncSession | AsyncConnection):
        return transaction
    raise ConfigError(
        f"a {type(transaction).__name__} is not async: pillarbox.sqlalchemy.AsyncOutbox and AsyncInbox take an"
        " AsyncSession or an AsyncConnection, Outbox and Inbox the sync ones"
    )


def _connection(transaction: Transaction) -> sa.Connection:
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
            f"a {type(transaction).__name__} is nothing that pillarbox.sqlalchemy can write to: give a Session or a"
            " Connection; AsyncOutbox and AsyncInbox take the async ones"
        )
    _check(connection)
    return connection


def _check(connection: sa.Connection) -> None:
    if connection.dialect.name != "sqlite":
        raise ConfigError(
            f"{connection.dialect.name}+{connection.dialect.driver} is no database that pillarbox.sqlalchemy knows yet:"
            " it writes to sqlite (sqlite+pysqlite, sqlite+aiosqlite)"
        )
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise NoTransaction(f"this connection is in autocommit, so nothing could be atomic with your changes: {_CURE}")
    if not connection.in_transaction():
        connection.begin()
    check_transaction(connection.connection.driver_connection, _CURE)
    if connection.in_nested_transaction() and connection.get_transaction() in _bare:
        raise NoTransaction(
            "this savepoint was opened before the driver had begun a transaction, so its release commits, and no"
            f" rollback takes the event back: {_SAVEPOINTS}"
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


def _run(connection: sa.Connection, statement: Statement) -> Rows:
    if statement.rows is not None:
        rows: Any = statement.rows
        connection.exec_driver_sql(statement.sql, rows)
        return ()
    result = connection.exec_driver_sql(statement.sql, tuple(statement.parameters))
    return result.fetchall() if result.returns_rows else ()


def _on(session: Session, statement: Statement) -> Rows:
    with _failures(session.get_bind().engine):
        if not session.is_active:  # a flush of the handler failed: what it had begun is undone already
            session.rollback()
        connection = session.connection()
        _check(connection)
        return _run(connection, statement)


def _call(session: Session, call: Call) -> object:
    with _outages():
        value = call_sync(call, session)
        session.flush()  # so that what it left pending fails as the handler's own doing
        return value


async def _call_async(session: AsyncSession, call: Call) -> object:
    with _outages():
        if call.is_async:
            value = await call_async(call, session)
        else:
            value = await session.run_sync(lambda sync: call_sync(call, sync))
        await session.flush()
        return value


@contextmanager
def _failures(engine: sa.Engine) -> Iterator[None]:
    """Turn the driver's errors under our own statements into ours."""
    try:
        yield
    except (exc.ProgrammingError, exc.InterfaceError):
        raise
    except exc.DBAPIError as error:
        raise error_of(_original(error), engine.url.database or "", _BEGIN) from error


@contextmanager
def _outages() -> Iterator[None]:
    """Turn those errors of a handler, or of a commit, into ours that mean: the database is away, locked or full."""
    try:
        yield
    except exc.DBAPIError as error:
        ours = error_of(_original(error), "", _BEGIN)
        if isinstance(ours, StoreUnavailable):
            raise ours from error
        raise


def _original(error: exc.DBAPIError) -> Exception:
    return error.orig if isinstance(error.orig, Exception) else error
