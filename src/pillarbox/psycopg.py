"""The door for psycopg 3: Outbox and Inbox on the caller's own connection, inside its transaction; each also async.

Nothing is committed here but what a Consumer asks an Inbox to do, and no second connection is opened.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Literal, NoReturn, Protocol, TypeVar, Unpack
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
from pillarbox.errors import ConfigError, MissingExtra, NoTransaction, StoreUnavailable
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
    refused_at_commit,
)

try:
    import psycopg
    from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
    from psycopg.pq import ConnStatus, Escaping, ExecStatus, Format, TransactionStatus
    from psycopg.rows import tuple_row
    from psycopg.types.string import TextLoader
except ImportError as error:
    raise MissingExtra("postgres", "pillarbox.psycopg") from error

R = TypeVar("R")
_BROKEN = (psycopg.IntegrityError, psycopg.errors.RaiseException)
"""What constraints that wait for the commit raise: PostgreSQL's own, and those that somebody wrote as a trigger."""
_ENDED = "PB002"
"""What keep_received tells of a handler that has committed by itself."""
_CURE = "wrap it in `with connection.transaction():`, or connect without autocommit"


class Outbox:
    """Where an application puts events, in its own transaction.

    >>> outbox = Outbox()
    >>> with psycopg.connect("dbname=shop") as connection:                          # doctest: +SKIP
    ...     connection.execute("INSERT INTO orders (id, total) VALUES (7, 42)")
    ...     outbox.add(connection, Event("OrderPlaced", {"total": 42}, aggregate=("order", 7)))
    """

    def __init__(self, **place: Unpack[PlaceOptions]) -> None:
        self._place = Place(dialect="postgres", marker="%s", **place)

    def add(self, connection: Connection[Any], *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        """Add events in the connection's transaction; they are published if, and only if, it commits."""
        _check_kind(connection, Connection)
        _check_transaction(connection)
        if (statement := postgres_insertion(events, self._place, on_duplicate)) is None:
            return
        cursor = Cursor(connection, row_factory=tuple_row)
        try:
            cursor.execute(statement.sql.encode(), statement.parameters)
        except psycopg.Error as error:
            if _is_callers_own(error):
                raise
            raise error_of(error, error.sqlstate) from error
        answer = cursor.fetchall() if statement.answers else ()
        refuse_duplicates(events, answer, on_duplicate)


class AsyncOutbox:
    """The same for AsyncConnection.

    >>> outbox = AsyncOutbox()
    """

    def __init__(self, **place: Unpack[PlaceOptions]) -> None:
        self._place = Place(dialect="postgres", marker="%s", **place)

    async def add(
        self, connection: AsyncConnection[Any], *events: Event[Any], on_duplicate: OnDuplicate = "raise"
    ) -> None:
        """Add events in the connection's transaction; they are published if, and only if, it commits."""
        _check_kind(connection, AsyncConnection)
        _check_transaction(connection)
        if (statement := postgres_insertion(events, self._place, on_duplicate)) is None:
            return
        cursor = AsyncCursor(connection, row_factory=tuple_row)
        try:
            await cursor.execute(statement.sql.encode(), statement.parameters)
        except psycopg.Error as error:
            if _is_callers_own(error):
                raise
            raise error_of(error, error.sqlstate) from error
        answer = await cursor.fetchall() if statement.answers else ()
        refuse_duplicates(events, answer, on_duplicate)


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
        _check_kind(connection, Connection)
        _check_transaction(connection)
        program = programs.first_time(self.texts, message_key(message_id))
        return drive(program, lambda statement: _run(connection, statement))

    def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own; for the consumer."""
        with _failures(), self._connection() as connection:
            try:
                result = drive(program, Exchange(connection).run, lambda step: _call(connection, step))
                with commit_failures(*_BROKEN):
                    connection.commit()  # costs nothing if it went with the last statement
            except BaseException:
                _roll_back(connection)
                raise
            return result

    def close(self) -> None:
        """Close this thread's connection; a pool is the application's."""
        connection: Connection[Any] | None = self._mine.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        if not callable(self._opener):
            with self._opener.connection() as connection:
                yield connection
            return
        mine: Connection[Any] | None = self._mine.__dict__.get("connection")
        if mine is None or mine.closed:
            mine = self._mine.connection = self._opener()
            _check_kind(mine, Connection)
        if mine.info.transaction_status is not TransactionStatus.IDLE:
            mine.rollback()
        yield mine


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
        _check_kind(connection, AsyncConnection)
        _check_transaction(connection)
        program = programs.first_time(self.texts, message_key(message_id))
        return await drive_async(program, lambda statement: _run_async(connection, statement))

    async def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own; for the consumer."""
        with _failures():
            async with self._connection() as connection:
                with commit_failures(*_BROKEN):
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
        _check_kind(mine, AsyncConnection)
        try:
            yield mine
        finally:
            if not mine.closed and mine.info.transaction_status is TransactionStatus.IDLE:
                self._idle.append(mine)
            else:
                await mine.close()


AnyConnection = Connection[Any] | AsyncConnection[Any]


def _place(schema: str, prefix: str) -> str:
    return f"{check_identifier('schema', schema)}.{prefix}"


O = TypeVar("O")  # noqa: E741


def _check_opener(opener: O, example: str) -> O:
    if isinstance(opener, Connection | AsyncConnection) or not (callable(opener) or hasattr(opener, "connection")):
        raise ConfigError(
            f"opener: {opener!r:.60} opens nothing: give a pool, or a function that connects, for example"
            f" lambda: {example}"
        )
    return opener


def _roll_back(connection: Connection[Any]) -> None:
    try:
        connection.rollback()
    except psycopg.Error:  # it is broken: the next program opens another
        connection.close()


class Exchange:
    """A consumer's transactions on a Connection, in few messages: a BEGIN goes with the first statement, and a COMMIT
    with the last. The wrapper of libpq sends them: a cursor takes several times as long on its way there."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection, self._pgconn = connection, connection.pgconn
        self._escaping = Escaping(connection.pgconn)
        self._ended = False

    def run(self, statement: Statement) -> Rows:
        try:
            if self._pgconn.transaction_status == TransactionStatus.IDLE:
                return self._begin(statement)
            if statement.last and (text := self._bound(statement)) is not None:
                return self._commit(text)
        except psycopg.Error as error:
            _raise_ours(error)
        return _run(self._connection, statement)

    def _begin(self, statement: Statement) -> Rows:
        begin, text = _begin(self._connection), self._bound(statement)
        if text is None:
            self._send(begin)
            return _run(self._connection, statement)
        return self._send(begin + b"; " + text)

    def _commit(self, text: bytes) -> Rows:
        self._ended = False
        self._connection.add_notice_handler(self._note)
        try:
            self._send(text + b"; COMMIT")
        except _BROKEN as error:
            raise refused_at_commit(error) from error
        finally:
            self._connection.remove_notice_handler(self._note)
        return [(self._ended,)]

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        self._ended = self._ended or notice.sqlstate == _ENDED

    def _bound(self, statement: Statement) -> bytes | None:
        """Write a statement with its parameters in it; None if that takes more than texts and numbers."""
        if statement.rows is not None:
            return None
        encoding = self._encoding()
        literals = []
        for value in statement.parameters:
            if value is None:
                literals.append(b"NULL")
            elif value.__class__ is str and "\0" not in value:
                literals.append(self._escaping.escape_literal(value.encode(encoding)))
            elif isinstance(value, int):
                literals.append(str(value).encode())
            else:
                return None
        return statement.sql.encode() % tuple(literals)

    def _encoding(self) -> str:
        usual = self._pgconn.parameter_status(b"client_encoding") == b"UTF8"
        return "utf-8" if usual else self._connection.info.encoding

    def _send(self, text: bytes) -> Rows:
        """Send a text of several statements; give the rows of the last one."""
        result = self._pgconn.exec_(text)
        if self._pgconn.status == ConnStatus.BAD:
            raise psycopg.OperationalError(self._pgconn.get_error_message())
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise psycopg.errors.error_from_result(result, encoding=self._encoding())
        loads = [self._load(result.ftype(column)) for column in range(result.nfields)]
        return [
            tuple(
                None if (value := result.get_value(row, column)) is None else load(value)
                for column, load in enumerate(loads)
            )
            for row in range(result.ntuples)
        ]

    def _load(self, oid: int) -> Callable[[bytes], Any]:
        loader = self._connection.adapters.get_loader(oid, Format.TEXT) or TextLoader
        return loader(oid, self._connection).load


def _begin(connection: Connection[Any]) -> bytes:
    """Begin as the connection is set to."""
    words = ["BEGIN"]
    if connection.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {connection.isolation_level.name.replace('_', ' ')}")
    if connection.read_only is not None:
        words.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()


def _run(connection: Connection[Any], statement: Statement) -> Rows:
    with _failures(), Cursor(connection, row_factory=tuple_row) as cursor:
        if statement.rows is not None:
            cursor.executemany(statement.sql.encode(), statement.rows)
            return ()
        cursor.execute(statement.sql.encode(), statement.parameters)
        return cursor.fetchall() if cursor.description else ()


async def _run_async(connection: AsyncConnection[Any], statement: Statement) -> Rows:
    with _failures():
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            if statement.rows is not None:
                await cursor.executemany(statement.sql.encode(), statement.rows)
                return ()
            await cursor.execute(statement.sql.encode(), statement.parameters)
            return await cursor.fetchall() if cursor.description else ()


def _call(connection: Connection[Any], step: Call) -> object:
    with _outages(connection):
        value = call_sync(step, connection)
    _check_shared(connection, step)
    return value


async def _call_async(connection: AsyncConnection[Any], step: Call) -> object:
    with _outages(connection):
        value = await call_async(step, connection) if step.is_async else call_sync(step, connection)
    _check_shared(connection, step)
    return value


def _check_shared(connection: AnyConnection, step: Call) -> None:
    if step.shared and not is_open(connection):
        raise EndedByHandler


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what the server says to a statement of ours into our errors; a misuse of psycopg is the caller's own."""
    try:
        yield
    except psycopg.Error as error:
        _raise_ours(error)


def _raise_ours(error: psycopg.Error) -> NoReturn:
    if _is_callers_own(error):
        raise error
    raise error_of(error, error.sqlstate) from error


@contextmanager
def _outages(connection: AnyConnection) -> Iterator[None]:
    """Turn only those errors of a handler into ours that mean: the database is away, or wants another try."""
    try:
        yield
    except psycopg.Error as error:
        ours = error_of(error, error.sqlstate)
        if isinstance(ours, StoreUnavailable) and not _is_callers_own(error) and not _was_closed(connection):
            raise ours from error
        raise
    if _was_closed(connection):
        raise ClosedByHandler


def _was_closed(connection: AnyConnection) -> bool:
    """Tell whether somebody here has closed it; one that broke is not closed by us."""
    return connection.closed and not connection.broken


def _check_kind(connection: object, expected: type) -> None:
    if not isinstance(connection, expected):
        raise ConfigError(
            f"a {type(connection).__module__}.{type(connection).__qualname__} is no psycopg.{expected.__name__}:"
            " pillarbox.psycopg.Outbox takes a Connection, AsyncOutbox an AsyncConnection; each other tool has a module"
            " of its own"
        )


def _check_transaction(connection: AnyConnection) -> None:
    # Without autocommit psycopg begins by itself. A connection that is closed says so when the statement runs.
    if connection.autocommit and not connection.closed and not _in_transaction(connection):
        raise NoTransaction(f"this connection is in autocommit, so nothing could be atomic with your changes: {_CURE}")


def _in_transaction(connection: AnyConnection) -> bool:
    return connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def _is_callers_own(error: psycopg.Error) -> bool:
    """Tell whether an error is about how psycopg was used, and not about what the server said."""
    return error.sqlstate is None and not isinstance(error, psycopg.OperationalError)
