"""Outbox and AsyncOutbox: events go into the caller's transaction."""

from typing import Any, Unpack

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.rows import tuple_row

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, PlaceOptions, postgres_insertion, refuse_duplicates
from pillarbox.psycopg.connection import check_kind, check_transaction, raise_ours
from pillarbox.tracing import with_trace


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
        check_kind(connection, Connection)
        check_transaction(connection)
        if (statement := postgres_insertion(with_trace(events), self._place, on_duplicate)) is None:
            return
        cursor = Cursor(connection, row_factory=tuple_row)
        try:
            cursor.execute(statement.sql.encode(), statement.parameters)
        except psycopg.Error as error:
            raise_ours(error)
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
        check_kind(connection, AsyncConnection)
        check_transaction(connection)
        if (statement := postgres_insertion(with_trace(events), self._place, on_duplicate)) is None:
            return
        cursor = AsyncCursor(connection, row_factory=tuple_row)
        try:
            await cursor.execute(statement.sql.encode(), statement.parameters)
        except psycopg.Error as error:
            raise_ours(error)
        answer = await cursor.fetchall() if statement.answers else ()
        refuse_duplicates(events, answer, on_duplicate)
