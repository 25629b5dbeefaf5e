"""Inbox and AsyncInbox: what an application with SQLAlchemy receives events by."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, Unpack, overload
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from pillarbox.core.event import Event
from pillarbox.core.insert import Rows, Statement, check_identifier
from pillarbox.core.wording import a_kind_of
from pillarbox.errors import ConfigError
from pillarbox.inbox import programs
from pillarbox.inbox.inbox import HandlerOptions, Handlers, Once, Registry, message_key
from pillarbox.inbox.statements import Texts, texts_of
from pillarbox.inbox.steps import (
    Call,
    EndedByHandler,
    Program,
    call_async,
    call_sync,
    commit_failures,
    drive,
    drive_async,
    guarded,
    is_open,
    refuse_ends,
)
from pillarbox.sqlalchemy.transaction import (
    AsyncTransaction,
    Transaction,
    async_half,
    check_transaction,
    connection_of,
    database_of,
    failures,
    outages,
    run,
)

R = TypeVar("R")
M = TypeVar("M")
G = TypeVar("G")
AnyHandler = Callable[[AsyncSession, G], Any] | Callable[[Session, G], None]
"""What an AsyncInbox takes for `G`: an event, or a list of events."""


class Inbox(Registry[Session, None]):
    """Receives events for one consumer, each once. `sessions` is a sessionmaker; handlers get the Session.

    >>> inbox = Inbox("billing", sessionmaker(engine))                              # doctest: +SKIP
    """

    is_async: Literal[False] = False

    def __init__(
        self,
        consumer: str,
        sessions: Callable[[], Session],
        *,
        schema: str = "public",
        prefix: str = "pillarbox_",
    ) -> None:
        super().__init__(consumer, prefix, takes_async=False)
        self._sessions = _check_opener(sessions, "a sessionmaker", unlike=async_sessionmaker)
        self._tables = _Tables(consumer, schema, prefix)

    def first_time(self, transaction: Transaction, message_id: str | UUID) -> bool:
        """Note a message in the session's transaction; False if this consumer has it already."""
        return _first_time(transaction, self._tables, message_id)

    @property
    def texts(self) -> Texts:
        """The statements for the consumer's database."""
        with self._sessions() as session:
            return self._tables.texts(session.get_bind())

    @property
    def most_workers(self) -> int | None:
        """SQLite has one writer at a time."""
        with self._sessions() as session:
            return _most_workers(session.get_bind())

    def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own, in a new session; for the consumer."""
        with self._sessions() as session:
            try:
                result = drive(program, lambda statement: _on(session, statement), lambda call: _call(session, call))
                with commit_failures(sa.exc.DBAPIError), outages():
                    session.commit()
            except BaseException:
                session.rollback()
                raise
            return result

    def close(self) -> None:
        """Every program closes its own session, and the engine's pool is the application's."""


class AsyncInbox(Once):
    """Receives events for one consumer, each once. `sessions` is an async_sessionmaker.

    Async handlers get the AsyncSession; plain functions get its sync Session, and may use it as in a sync program.

    >>> inbox = AsyncInbox("billing", async_sessionmaker(engine))                   # doctest: +SKIP
    """

    is_async: Literal[True] = True

    def __init__(
        self,
        consumer: str,
        sessions: Callable[[], AsyncSession],
        *,
        schema: str = "public",
        prefix: str = "pillarbox_",
    ) -> None:
        self.consumer = consumer
        self.handlers = Handlers(consumer, prefix, takes_async=True)
        self._sessions = _check_opener(sessions, "an async_sessionmaker", unlike=sessionmaker)
        self._tables = _Tables(consumer, schema, prefix)

    @overload
    def handler(
        self, type: str, *, payload: type[M], batch: Literal[False] = False, **options: Unpack[HandlerOptions]
    ) -> Callable[[AnyHandler[Event[M]]], AnyHandler[Event[M]]]: ...
    @overload
    def handler(
        self, type: str, *, payload: None = None, batch: Literal[False] = False, **options: Unpack[HandlerOptions]
    ) -> Callable[[AnyHandler[Event[Any]]], AnyHandler[Event[Any]]]: ...
    @overload
    def handler(
        self, type: str, *, payload: type[M], batch: Literal[True], **options: Unpack[HandlerOptions]
    ) -> Callable[[AnyHandler[list[Event[M]]]], AnyHandler[list[Event[M]]]]: ...
    @overload
    def handler(
        self, type: str, *, payload: None = None, batch: Literal[True], **options: Unpack[HandlerOptions]
    ) -> Callable[[AnyHandler[list[Event[Any]]]], AnyHandler[list[Event[Any]]]]: ...
    def handler(self, type: str, *, payload: Any = None, batch: bool = False, **options: Unpack[HandlerOptions]) -> Any:
        """Register the function for a type of event; its payload is decoded into `payload`, if one is named. With
        `batch` it is called with a list of events."""
        return self.handlers.registrar(type, payload, batch=batch, **options)

    async def first_time(self, transaction: AsyncTransaction, message_id: str | UUID) -> bool:
        """Note a message in the session's transaction; False if this consumer has it already."""
        return await async_half(transaction).run_sync(_first_time, self._tables, message_id)

    @property
    def texts(self) -> Texts:
        """The statements for the consumer's database."""
        return self._tables.texts(self._sessions().get_bind())

    @property
    def most_workers(self) -> int | None:
        """SQLite has one writer at a time."""
        return _most_workers(self._sessions().get_bind())

    async def close(self) -> None:
        """Every program closes its own session, and the engine's pool is the application's."""

    async def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own, in a new session; for the consumer."""
        async with self._sessions() as session:

            async def run(statement: Statement) -> Rows:
                return await session.run_sync(_on, statement)

            async def call(step: Call) -> object:
                return await _call_async(session, step)

            try:
                result = await drive_async(program, run, call)
                with commit_failures(sa.exc.DBAPIError), outages():
                    await session.commit()
            except BaseException:
                await session.rollback()
                raise
            return result


Bind = sa.Engine | sa.Connection


class _Tables(NamedTuple):
    """A consumer's tables, wherever its sessions lead."""

    consumer: str
    schema: str
    prefix: str

    def texts(self, bind: Bind) -> Texts:
        dialect, marker = database_of(bind)
        place = self.prefix if dialect == "sqlite" else f"{check_identifier('schema', self.schema)}.{self.prefix}"
        return texts_of(self.consumer, dialect, marker, place)


def _most_workers(bind: Bind) -> int | None:
    return 1 if database_of(bind)[0] == "sqlite" else None


def _check_opener(sessions: Callable[[], R], kind: str, *, unlike: type) -> Callable[[], R]:
    if isinstance(sessions, unlike) or not callable(sessions):
        its = "AsyncInbox" if unlike is async_sessionmaker else "Inbox"
        other = f", or take {its}" if isinstance(sessions, unlike) else ""
        raise ConfigError(f"sessions: {a_kind_of(sessions)} opens no sessions for this inbox: give {kind}{other}")
    return sessions


def _first_time(transaction: Transaction, tables: _Tables, message_id: str | UUID) -> bool:
    connection = connection_of(transaction)
    with failures(connection.engine):
        program = programs.first_time(tables.texts(connection), message_key(message_id))
        return drive(program, lambda statement: run(connection, statement))


def _on(session: Session, statement: Statement) -> Rows:
    with failures(session.get_bind().engine):
        if not session.is_active:  # a flush of the handler failed: what it had begun is undone already
            session.rollback()
        connection = session.connection()
        check_transaction(connection)
        return run(connection, statement)


def _call(session: Session, call: Call) -> object:
    with outages(), guarded(_driver(session, call), call):
        value = call_sync(call, session)
        session.flush()  # so that what it left pending fails as the handler's own doing
        _check_shared(session, call)
        return value


async def _call_async(session: AsyncSession, call: Call) -> object:
    with outages():
        driver = _driver(session.sync_session, call)
        guards = driver is not None and hasattr(driver, "set_authorizer")  # aiosqlite's, which is awaited
        if guards:
            await driver.set_authorizer(refuse_ends)
        try:
            if call.is_async:
                value = await call_async(call, session)
            else:
                value = await session.run_sync(lambda sync: call_sync(call, sync))
        finally:
            if guards:
                await driver.set_authorizer(None)
        await session.flush()
        _check_shared(session.sync_session, call)
        return value


def _driver(session: Session, call: Call) -> Any:
    """Give the driver's own connection, if others share its transaction; our rows are written, so it is there."""
    return session.connection().connection.driver_connection if call.shared else None


def _check_shared(session: Session, call: Call) -> None:
    # In a session that has begun anew by itself, what follows would be undone with everything else.
    if call.shared and not (session.in_transaction() and is_open(_driver(session, call))):
        raise EndedByHandler
