"""What PostgreSQL's error codes mean for an application. Pure; every door on PostgreSQL asks here."""

import re
from shlex import quote

from pillarbox.errors import SchemaMismatch, StoreError, StoreUnavailable

_NOT_OURS = ("42P01", "42703", "42883", "3F000")  # no such table, column, function, schema
_IN_THE_WAY = ("40001", "40P01")  # serialization failure, deadlock
_AGAIN = ("55P03", "57014")  # no lock in time, cancelled
_AWAY = (
    "08",
    "53",
    "57P",
    "25P03",
    "25P04",
)  # connection, resources, shutdown; a session that idled, or took, too long
_READ_ONLY, _FAILED, _NO_RIGHT = "25006", "25P02", "42501"
MISCONFIGURED = (
    *("password authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied"),
    "unrecognized configuration parameter",
)
"""What the server says of a connection that will never be let in: drivers on libpq have no code for it."""
NO_TRANSACTIONS = "not allowed in statement pooling mode"
"""What PgBouncer says in that mode to whoever begins a transaction."""
ANOTHER_MODE = (
    "the pooler allows no transactions, and every event belongs to one: set its pool_mode to transaction or session, or"
    " connect to the server itself"
)
_UNDONE = "PB001"  # our own: keep_received raises it
_NOT_PREPARED = ("26000", "42P05")  # a prepared statement is not there, or is there already
_OUR_NAME = re.compile(
    r"\b(\w+)\.(\w+?)(?:outbox|add|draw_numbers|take_keys|inbox|inbox_parked|receive|park_received)\b"
)
_NO_DATABASE = re.compile(r'database "(.+)" does not exist')
_PREPARED = (
    "a pooler in transaction mode gives each transaction another session, so let the driver prepare nothing:"
    " prepare_threshold=None with psycopg, statement_cache_size=0 with asyncpg, prepared_statement_cache_size=0 besides"
    " with SQLAlchemy on asyncpg"
)


class StoreConflict(StoreUnavailable):
    """Two transactions were in each other's way, and the database chose this one to be tried again."""


class TransactionFailed(StoreError):
    """An earlier statement of this transaction failed, so nothing of it can be kept."""


class RowUndone(StoreError):
    """An event's row in the inbox is not there any more, although its handler has returned."""


def hint(words: str) -> str:
    """Say what to do where the server tells that something it was asked for is not there."""
    if found := _NO_DATABASE.search(words):
        return f": make it (`createdb {quote(found[1])}`, then `pillarbox migrate up`), or mend the name in the URL"
    return ""


def migrate_up(database: str, schema: str = "public", prefix: str = "pillarbox_") -> str:
    """Write the command that makes the tables of a place, with what differs from the defaults."""
    words = f"migrate up --database {database}"
    if schema != "public":
        words += f" --set outbox.schema={schema}"
    return words if prefix == "pillarbox_" else f"{words} --set outbox.prefix={prefix}"


def _migrate(words: str) -> str:
    """Name the command for the place that was looked for, which the server has named."""
    if (found := _OUR_NAME.search(words)) is None:
        return f"run `pillarbox {migrate_up('postgresql://…')}`"
    schema, prefix = found[1], found[2]
    return (
        f"run `pillarbox {migrate_up('postgresql://…', schema, prefix)}`; if the tables are there, they have another"
        f" schema or prefix than {schema!r} and {prefix!r}, which were looked for: schema= and prefix= of Outbox or"
        " Inbox and [outbox] of the settings must be the same"
    )


def error_of(error: BaseException, sqlstate: str | None) -> StoreError:
    """Give our error for one of a driver's; without an SQLSTATE the connection itself broke."""
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    code = sqlstate or ""
    if NO_TRANSACTIONS in words:
        return StoreError(f"{words}: {ANOTHER_MODE}")
    if code in _NOT_OURS:
        return SchemaMismatch(f"{words}: {_migrate(words)}")
    if code in _NOT_PREPARED:
        return StoreError(f"{words}: {_PREPARED}; then roll back and begin again")
    if code == _NO_RIGHT:
        return StoreError(f"{words}: grant this user the writer's role, which the script with the roles makes")
    if code == _FAILED:
        return TransactionFailed(
            f"an earlier statement of this transaction failed ({words}): roll back and begin again"
        )
    if code == _UNDONE:
        return RowUndone(words)
    if code == _READ_ONLY:
        return StoreUnavailable(f"{words}: this may be a standby; connect to the primary and try again")
    if code in _IN_THE_WAY:
        return StoreConflict(f"{words}; roll back and try again")
    if code in _AGAIN:
        return StoreUnavailable(f"{words}; roll back and try again")
    if not code and any(sign in words for sign in MISCONFIGURED):
        cure = hint(words) or "; mend the user, the password or the database's name"
        return StoreError(f"PostgreSQL lets nobody in: {words}{cure}")
    if not code or code.startswith(_AWAY):
        return StoreUnavailable(f"PostgreSQL is away: {words}; connect and try again")
    return StoreError(f"PostgreSQL refused: {words}")
