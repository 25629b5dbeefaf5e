"""A database with the outbox's tables, for tests of the doors on PostgreSQL."""

from collections.abc import Sequence
from typing import Any

import psycopg

from pillarbox.stores.postgres.schema import Tables


def tables(schema: str = "public", prefix: str = "pillarbox_") -> bytes:
    """Give the script of the tables and functions."""
    return Tables(schema, prefix).sql().encode()


def roles(schema: str = "public", prefix: str = "pillarbox_") -> bytes:
    """Give the script of the roles."""
    return Tables(schema, prefix).roles().encode()


def made(url: str) -> str:
    """Make the tables; give the URL."""
    with psycopg.connect(url, autocommit=True) as connection:  # the script has its own BEGIN and COMMIT
        connection.execute(tables())
    return url


def read(url: str, columns: str, table: str = "outbox", order: str = "id") -> list[Any]:
    """Read columns of one of our tables; one column comes without its tuple."""
    with psycopg.connect(url) as connection:
        query = f"SELECT {columns} FROM pillarbox_{table} ORDER BY {order}"
        rows: Sequence[tuple[Any, ...]] = connection.execute(query.encode()).fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]
