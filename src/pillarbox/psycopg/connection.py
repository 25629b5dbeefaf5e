"""What the halves of the door ask of a connection, and whose an error is."""

from typing import Any, NoReturn

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from pillarbox.core.postgres_facts import error_of
from pillarbox.core.wording import a_kind_of
from pillarbox.errors import ConfigError, NoTransaction

AnyConnection = Connection[Any] | AsyncConnection[Any]
_CURE = "wrap it in `with connection.transaction():`, or connect without autocommit"


def check_kind(connection: object, expected: type) -> None:
    """Refuse what is no connection of the right kind."""
    if not isinstance(connection, expected):
        raise ConfigError(
            f"{a_kind_of(connection)} is no psycopg.{expected.__name__}:"
            " pillarbox.psycopg's Outbox and Inbox take a Connection, AsyncOutbox and AsyncInbox an AsyncConnection;"
            " each other tool has a module of its own"
        )


def check_transaction(connection: AnyConnection) -> None:
    """Refuse a connection on which nothing could be atomic."""
    # Without autocommit psycopg begins by itself. A connection that is closed says so when the statement runs.
    if connection.autocommit and not connection.closed and not _in_transaction(connection):
        raise NoTransaction(f"this connection is in autocommit, so nothing could be atomic with your changes: {_CURE}")


def _in_transaction(connection: AnyConnection) -> bool:
    return connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def raise_ours(error: psycopg.Error) -> NoReturn:
    """Raise our error for what the server said; a misuse of psycopg is the caller's own and stays."""
    if is_callers_own(error):
        raise error
    raise error_of(error, error.sqlstate) from error


def is_callers_own(error: psycopg.Error) -> bool:
    """Tell whether an error is about how psycopg was used, and not about what the server said."""
    # Its own InternalErrors are about answers that do not fit: a session that is ended in a commit gives it two.
    return error.sqlstate is None and not isinstance(error, psycopg.OperationalError | psycopg.InternalError)
