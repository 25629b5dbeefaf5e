"""Inbox and AsyncInbox: events are received on connections of the application's making."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Literal, NoReturn, Protocol, TypeVar
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pillarbox.core.insert import Rows, Statement, check_identifier
from pillarbox.core.postgres_facts import error_of
from pillarbox.core.wording import a_kind_of
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.inbox import programs
from pillarbox.inbox.inbox import Registry, message_key
from pillarbox.inbox.statements import texts_of
from pillarbox.inbox.steps import (
    Call,
    ClosedByHandler,
    EndedByHandler,
    Program,
    call_async,
    call_sync,
    commit_failures,
    drive,
    drive_async,
    is_open,
)
from pillarbox.psycopg.connection import AnyConnection, check_kind, check_transaction, is_callers_own, raise_ours
from pillarbox.psycopg.exchange import BROKEN, Exchange, run

R = TypeVar("R")


class Pool(Protocol):
    """What psycopg_pool.ConnectionPool has."""

    def connection(self) -> AbstractContextManager[Connection[Any]]: ...


class AsyncPool(Protocol):
    """What psycopg_pool.AsyncConnectionPool has."""

    def connection(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]: ...


class Inbox(Registry[Connection[Any], None]):
    """Receives events for one consumer, each once. `opener` is a pool, or opens a connection, of which every worker
    thread keeps one.

    >>> inbox = Inbox("billing", lambda: psycopg.connect("dbname=billing"))
    >>> @inbox.handler("OrderPlaced")
    ... def bill(connection: Connection[Any], event: Event[Any]) -> None:
    ...     connection.execute("INSERT INTO invoices (order_id) VALUES (%s)", [event.payload["order_id"]])
    """

    is_async: Literal[False] = False
    most_workers = None

    def __init__(
        self,
        consumer: str,
        opener: Callable[[], Connection[Any]] | Pool,
        *,
        schema: str = "public",
        prefix: str = "pillarbox_",
    ) -> None:
        super().__init__(consumer, prefix, takes_async=False)
        self.texts = texts_of(consumer, "postgres", "%s", _place(schema, prefix))
        self._opener = _check_opener(opener, "psycopg.connect('dbname=billing')")
        self._mine = threading.local()

    def first_time(self, connection: Connection[Any], message_id: str | UUID) -> bool:
        """Note a message in the connection's transaction; False if this consumer has it already."""
        check_kind(connection, Connection)
        check_transaction(connection)
        program = programs.first_time(self.texts, message_key(message_id))
        with _failures():
            return drive(program, lambda statement: run(connection, statement))

    def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own; for the consumer."""
        with self._exchange() as own:
            return _perform(program, own)

    def perform_each(self, programs: Iterator[Program[R]], done: Callable[[R], None]) -> None:
        """Run programs, each in a transaction of its own; the end of one goes to the server with the beginning of the
        next. For the consumer."""
        with self._exchange() as own:
            _perform_each(programs, done, own)

    @contextmanager
    def _exchange(self) -> Iterator["_Own"]:
        """Give a connection with nothing begun on it, and what runs statements there."""
        opener = self._opener
        try:
            if callable(opener):
                yield self._own(opener)
                return
            with opener.connection() as connection:
                exchange = Exchange(connection)
                try:
                    yield connection, exchange
                finally:
                    exchange.close()
        except psycopg.Error as error:
            raise_ours(error)

    def close(self) -> None:
        """Close this thread's connection; a pool is the application's."""
        mine: _Own | None = self._mine.__dict__.pop("own", None)
        if mine is not None:
            mine[0].close()

    def _own(self, connect: Callable[[], Connection[Any]]) -> "_Own":
        """Give this thread's connection, with nothing begun on it."""
        mine: _Own | None = self._mine.__dict__.get("own")
        if mine is None or mine[0].closed:
            connection = connect()
            check_kind(connection, Connection)
            mine = self._mine.own = (connection, Exchange(connection))
        if mine[0].pgconn.transaction_status != TransactionStatus.IDLE:
            mine[0].rollback()
        return mine


_Own = tuple[Connection[Any], Exchange]


def _perform(program: Program[R], own: _Own) -> R:
    connection, exchange = own
    try:
        result = drive(program, exchange.run, partial(_call, connection))
        _commit(connection)
    except BaseException:
        _roll_back(connection)
        raise
    return result


def _perform_each(programs: Iterator[Program[R]], done: Callable[[R], None], own: _Own) -> None:
    connection, exchange = own
    call = partial(_call, connection)
    program, answer = next(programs, None), None
    following: Program[R] | None = None

    def run(statement: Statement) -> Rows:
        nonlocal following, answer
        if not statement.last or (following := next(programs, None)) is None:
            return exchange.run(statement)
        first = next(following)
        assert isinstance(first, Statement)
        rows, answer = exchange.run_on(statement, first)
        return rows

    try:
        while program is not None:
            following = None
            result = drive(program, run, call, answer)
            if following is None:
                _commit(connection)
                following, answer = next(programs, None), None
            done(result)
            program = following
    except BaseException:
        _roll_back(connection)
        raise


def _commit(connection: Connection[Any]) -> None:
    if connection.pgconn.transaction_status != TransactionStatus.IDLE:  # it did not go with the last statement
        with commit_failures(*BROKEN):
            connection.commit()


class AsyncInbox(Registry[AsyncConnection[Any], Any]):
    """The same for AsyncConnection. `opener` is a pool, or a coroutine function that connects; one connection is kept
    for each worker.

    >>> inbox = AsyncInbox("billing", lambda: AsyncConnection.connect("dbname=billing"))
    """

    is_async: Literal[True] = True
    most_workers = None

    def __init__(
        self,
        consumer: str,
        opener: Callable[[], Awaitable[AsyncConnection[Any]]] | AsyncPool,
        *,
        schema: str = "public",
        prefix: str = "pillarbox_",
    ) -> None:
        super().__init__(consumer, prefix, takes_async=True)
        self.texts = texts_of(consumer, "postgres", "%s", _place(schema, prefix))
        self._opener = _check_opener(opener, "psycopg.AsyncConnection.connect('dbname=billing')")
        self._idle: list[AsyncConnection[Any]] = []

    async def first_time(self, connection: AsyncConnection[Any], message_id: str | UUID) -> bool:
        """Note a message in the connection's transaction; False if this consumer has it already."""
        check_kind(connection, AsyncConnection)
        check_transaction(connection)
        program = programs.first_time(self.texts, message_key(message_id))
        return await drive_async(program, lambda statement: _run_async(connection, statement))

    async def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own; for the consumer."""
        with _failures():
            async with self._connection() as connection:
                with commit_failures(*BROKEN):
                    async with connection.transaction():
                        return await drive_async(
                            program,
                            lambda statement: _run_async(connection, statement),
                            lambda step: _call_async(connection, step),
                        )

    async def close(self) -> None:
        """Close the connections that were kept; a pool is the application's."""
        while self._idle:
            await self._idle.pop().close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        if not callable(self._opener):
            async with self._opener.connection() as connection:
                yield connection
            return
        mine = self._idle.pop() if self._idle else await self._opener()
        check_kind(mine, AsyncConnection)
        try:
            yield mine
        finally:
            if not mine.closed and mine.info.transaction_status is TransactionStatus.IDLE:
                self._idle.append(mine)
            else:
                await mine.close()


def _place(schema: str, prefix: str) -> str:
    return f"{check_identifier('schema', schema)}.{prefix}"


O = TypeVar("O")  # noqa: E741


def _check_opener(opener: O, example: str) -> O:
    if isinstance(opener, Connection | AsyncConnection) or not (callable(opener) or hasattr(opener, "connection")):
        raise ConfigError(
            f"opener: {a_kind_of(opener)} opens nothing: give a pool, or a function that connects, for example"
            f" lambda: {example}"
        )
    return opener


def _roll_back(connection: Connection[Any]) -> None:
    try:
        connection.rollback()
    except psycopg.Error:  # it is broken: the next program opens another
        connection.close()


async def _run_async(connection: AsyncConnection[Any], statement: Statement) -> Rows:
    with _failures():
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            if statement.rows is not None:
                await cursor.executemany(statement.sql.encode(), statement.rows)
                return ()
            await cursor.execute(statement.sql.encode(), statement.parameters)
            return await cursor.fetchall() if cursor.description else ()


def _call(connection: Connection[Any], step: Call) -> object:
    try:
        value = call_sync(step, connection)
    except psycopg.Error as error:
        _raise_outage(connection, error)
    _check_after(connection, step)
    return value


async def _call_async(connection: AsyncConnection[Any], step: Call) -> object:
    try:
        value = await call_async(step, connection) if step.is_async else call_sync(step, connection)
    except psycopg.Error as error:
        _raise_outage(connection, error)
    _check_after(connection, step)
    return value


def _check_after(connection: AnyConnection, step: Call) -> None:
    if _was_closed(connection):
        raise ClosedByHandler
    if step.shared and not is_open(connection):
        raise EndedByHandler


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what the server says to a statement of ours into our errors."""
    try:
        yield
    except psycopg.Error as error:
        raise_ours(error)


def _raise_outage(connection: AnyConnection, error: psycopg.Error) -> NoReturn:
    """Turn only those errors of a handler into ours that mean: the database is away, or wants another try."""
    ours = error_of(error, error.sqlstate)
    if isinstance(ours, StoreUnavailable) and not is_callers_own(error) and not _was_closed(connection):
        raise ours from error
    raise error


def _was_closed(connection: AnyConnection) -> bool:
    """Tell whether somebody here has closed it; one that broke is not closed by us."""
    return connection.closed and not connection.broken
