"""A connection of Django's: which database it is, whether a transaction is open, and how statements run on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db import utils as errors

from pillarbox.core import postgres_facts, sqlite_facts
from pillarbox.core.insert import Rows, Statement
from pillarbox.core.insert_texts import Dialect
from pillarbox.errors import ConfigError, NoTransaction, StoreError, StoreUnavailable

_DIALECTS: dict[str, Dialect] = {"sqlite": "sqlite", "postgresql": "postgres"}
_BEGIN = "let DATABASES begin with 'OPTIONS': {'transaction_mode': 'IMMEDIATE'}"


def connection_of(using: str) -> Any:
    """Give Django's connection with this alias."""
    try:
        return connections[using]
    except ImproperlyConfigured as error:
        raise ConfigError(
            "Django is not set up: name its settings (DJANGO_SETTINGS_MODULE=shop.settings), and call django.setup()"
            f" at the top of the module with the inbox ({error})"
        ) from error


def dialect_of(connection: Any) -> Dialect:
    """Say which database it is."""
    if (dialect := _DIALECTS.get(connection.vendor)) is None:
        raise ConfigError(
            f"{connection.vendor} is no database that pillarbox.django knows: it writes to postgresql and sqlite"
        )
    return dialect


def check_transaction(connection: Any) -> None:
    if not connection.in_atomic_block and connection.get_autocommit():
        raise NoTransaction(
            f"the connection {connection.alias!r} is in autocommit, so nothing could be atomic with your changes:"
            " wrap it in `with transaction.atomic():`, with the same `using`"
        )


def run(cursor: Any, statement: Statement) -> Rows:
    if statement.rows is not None:
        cursor.executemany(statement.sql, statement.rows)
        return ()
    cursor.execute(statement.sql, statement.parameters)
    rows: Rows = cursor.fetchall() if cursor.description else ()
    return rows


@contextmanager
def failures(connection: Any) -> Iterator[None]:
    """Turn the driver's errors into ours; those of Django itself, such as a broken atomic block, stay."""
    try:
        yield
    except errors.Error as error:
        if (ours := _ours(connection, error)) is None:
            raise
        raise ours from error


@contextmanager
def outages(connection: Any) -> Iterator[None]:
    """Turn only those errors of a handler into ours that mean: the database is away, locked or full."""
    try:
        yield
    except errors.Error as error:
        if isinstance(ours := _ours(connection, error), StoreUnavailable):
            raise ours from error
        raise


def _ours(connection: Any, error: errors.Error) -> StoreError | None:
    if not isinstance(original := error.__cause__, Exception):
        return None
    if connection.vendor == "postgresql":
        return postgres_facts.error_of(original, getattr(original, "sqlstate", None))
    return sqlite_facts.error_of(original, str(connection.settings_dict["NAME"]), _BEGIN)
