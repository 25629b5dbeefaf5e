"""The door for asyncpg: Outbox on the caller's own connection, inside its transaction.

Nothing is committed here, and no second connection is opened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, Unpack

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, PlaceOptions, postgres_insertion, refuse_duplicates
from pillarbox.core.postgres_facts import error_of
from pillarbox.errors import ConfigError, MissingExtra, NoTransaction

try:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy
except ImportError as error:
    raise MissingExtra("asyncpg", "pillarbox.asyncpg") from error

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
        if (statement := postgres_insertion(events, self._place, on_duplicate)) is None:
            return
        with _failures():
            answer = await connection.fetch(statement.sql, *statement.parameters)
        if statement.answers:
            refuse_duplicates(events, answer, on_duplicate)


def _check(connection: object) -> None:
    if not isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        raise ConfigError(
            f"a {type(connection).__module__}.{type(connection).__qualname__} is no asyncpg connection: take one from"
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
