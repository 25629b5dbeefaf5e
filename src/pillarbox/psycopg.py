"""The door for psycopg 3: Outbox and AsyncOutbox on the caller's own connection, inside its transaction.

Nothing is committed here, and no second connection is opened.
"""

from typing import Any, Unpack

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, PlaceOptions, postgres_insertion, refuse_duplicates
from pillarbox.core.postgres_facts import error_of
from pillarbox.errors import ConfigError, MissingExtra, NoTransaction

try:
    import psycopg
    from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row
except ImportError as error:
    raise MissingExtra("postgres", "pillarbox.psycopg") from error

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


AnyConnection = Connection[Any] | AsyncConnection[Any]


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
