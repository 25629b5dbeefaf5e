"""The door for asyncpg: Outbox and Inbox on the caller's own connection, inside its transaction.

Nothing is committed here but what a Consumer asks an Inbox to do, and no second connection is opened.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeAlias, TypeVar, Unpack
from uuid import UUID

from pillarbox.core.event import Event
from pillarbox.core.insert import (
    OnDuplicate,
    Place,
    PlaceOptions,
    Rows,
    Statement,
    check_identifier,
    postgres_insertion,
    refuse_duplicates,
)
from pillarbox.core.postgres_facts import error_of
from pillarbox.core.wording import a_kind_of
from pillarbox.errors import ConfigError, MissingExtra, NoTransaction, StoreUnavailable
from pillarbox.inbox import programs
from pillarbox.inbox.inbox import Registry, message_key
from pillarbox.inbox.statements import texts_of
from pillarbox.inbox.steps import (
    Call,
    EndedByHandler,
    Program,
    call_async,
    call_sync,
    commit_failures,
    drive_async,
    is_open,
)
from pillarbox.tracing import with_trace

try:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy
except ImportError as error:
    raise MissingExtra("asyncpg", "pillarbox.asyncpg") from error

R = TypeVar("R")
AnyConnection: TypeAlias = asyncpg.Connection | PoolConnectionProxy


class Outbox:
    """Where an application puts events, in its own transaction.

    >>> outbox = Outbox()
    >>> async with connection.transaction():                                        # doctest: +SKIP
    ...     await connection.execute("INSERT INTO orders (id, total) VALUES (7, 42)")
    ...     await outbox.add(connection, Event("OrderPlaced", {"total": 42}, aggregate=("order", 7)))
    """

    def __init__(self, **place: Unpack[PlaceOptions]) -> None:
        self._place = Place(dialect="postgres", marker="$", **place)

    async def add(self, connection: AnyConnection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        """Add events in the connection's transaction; they are published if, and only if, it commits."""
        _check(connection)
        if (statement := postgres_insertion(with_trace(events), self._place, on_duplicate)) is None:
            return
        with _failures():
            answer = await connection.fetch(statement.sql, *statement.parameters)
        if statement.answers:
            refuse_duplicates(events, answer, on_duplicate)


class Inbox(Registry[Any, Any]):
    """Receives events for one consumer, each once. `opener` is a pool, or a coroutine function that connects; then one
    connection is kept for each worker. Handlers are async, and get the connection.

    >>> inbox = Inbox("billing", lambda: asyncpg.connect("postgresql:///billing"))
    """

    is_async: Literal[True] = True
    most_workers = None

    def __init__(
        self,
        consumer: str,
        opener: "Callable[[], Awaitable[asyncpg.Connection]] | asyncpg.Pool",
        *,
        schema: str = "public",
        prefix: str = "pillarbox_",
    ) -> None:
        super().__init__(consumer, prefix, takes_async=True)
        self.texts = texts_of(consumer, "postgres", "$", f"{check_identifier('schema', schema)}.{prefix}")
        if not isinstance(opener, asyncpg.Pool) and not callable(opener):
            raise ConfigError(
                f"opener: {a_kind_of(opener)} opens nothing: give a pool, or a function that connects, for example"
                " lambda: asyncpg.connect('postgresql:///billing')"
            )
        self._opener: Any = opener
        self._idle: list[asyncpg.Connection] = []

    async def first_time(self, connection: AnyConnection, message_id: str | UUID) -> bool:
        """Note a message in the connection's transaction; False if this consumer has it already."""
        _check(connection)
        program = programs.first_time(self.texts, message_key(message_id))
        return await drive_async(program, lambda statement: _run(connection, statement))

    async def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own; for the consumer."""
        with _failures():
            async with self._connection() as connection:
                transaction = connection.transaction()
                await transaction.start()
                try:
                    result = await drive_async(
                        program, lambda statement: _run(connection, statement), lambda step: _call(connection, step)
                    )
                except BaseException:
                    if not connection.is_closed():
                        await transaction.rollback()
                    raise
                with commit_failures(asyncpg.IntegrityConstraintViolationError, asyncpg.RaiseError):
                    await transaction.commit()
                return result

    async def close(self) -> None:
        """Close the connections that were kept; a pool is the application's."""
        while self._idle:
            await self._idle.pop().close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AnyConnection]:
        if isinstance(self._opener, asyncpg.Pool):
            async with self._opener.acquire() as connection:
                yield connection
            return
        mine = self._idle.pop() if self._idle else await self._opener()
        try:
            yield mine
        finally:
            if mine.is_closed() or mine.is_in_transaction():
                await mine.close()
            else:
                self._idle.append(mine)


async def _run(connection: AnyConnection, statement: Statement) -> Rows:
    with _failures():
        if statement.rows is not None:
            await connection.executemany(statement.sql, statement.rows)
            return ()
        return [tuple(row) for row in await connection.fetch(statement.sql, *statement.parameters)]


async def _call(connection: AnyConnection, step: Call) -> object:
    try:
        value = await call_async(step, connection) if step.is_async else call_sync(step, connection)
    except asyncpg.PostgresError as error:
        ours = error_of(error, error.sqlstate)
        if isinstance(ours, StoreUnavailable):
            raise ours from error
        raise
    if connection.is_closed():  # by the handler, or by the server while it awaited something: asyncpg does not say
        raise StoreUnavailable("the connection was lost while the handler ran, or the handler closed it")
    if step.shared and not is_open(connection):
        raise EndedByHandler
    return value


def _check(connection: object) -> None:
    if not isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        raise ConfigError(
            f"{a_kind_of(connection)} is no asyncpg connection: take one from"
            " the pool with `async with pool.acquire() as connection:`; each other tool has a module of its own"
        )
    if not connection.is_closed() and not connection.is_in_transaction():
        raise NoTransaction(
            "this connection is in autocommit, so nothing could be atomic with your changes:"
            " wrap it in `async with connection.transaction():`"
        )


@contextmanager
def _failures() -> Iterator[None]:
    """Turn asyncpg's errors into ours; a misuse of the connection is the caller's own and stays."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise error_of(error, error.sqlstate) from error
    except asyncpg.InterfaceError as error:
        if "closed" not in str(error):
            raise
        raise error_of(error, None) from error
    except OSError as error:  # as it connects
        raise error_of(error, None) from error
