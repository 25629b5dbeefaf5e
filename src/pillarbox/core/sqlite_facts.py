"""What SQLite's error codes and connection modes mean for an application. Pure; every door on SQLite asks here."""

import re
from typing import Any

from pillarbox.errors import NoTransaction, SchemaMismatch, StoreError, StoreUnavailable

BUSY, LOCKED, IO_ERROR, FULL, CANNOT_OPEN = 5, 6, 10, 13, 14
BUSY_SNAPSHOT = 517
LEGACY = -1
"""sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not name."""

_PREFIX = "pillarbox_"
_OUR_TABLE = re.compile(r"no such table: (?:\w+\.)?(\w*?)(?:outbox|inbox|inbox_parked|inbox_numbers|numbers|keys)$")
_NOT_OURS = ("no such table", "no such column", "has no column", "has no such column")


def error_of(error: Exception, file: str, begin: str) -> StoreError:
    """Give our error for one of sqlite3's; `begin` says how this tool begins a transaction that may write at once."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    where = file or "in memory"
    if code == BUSY_SNAPSHOT:
        return StoreUnavailable(
            f"the transaction on {where} read before it wrote, and somebody else has written since: SQLite cannot let"
            " it write any more, and no waiting cures that (SQLITE_BUSY_SNAPSHOT); roll back, and begin immediately:"
            f" {begin}"
        )
    if code & 0xFF in (BUSY, LOCKED):
        return StoreUnavailable(f"the database {where} is locked by another writer: {error}; roll back and try again")
    if code & 0xFF in (IO_ERROR, FULL, CANNOT_OPEN):
        return StoreUnavailable(f"the database {where} cannot be written: {error}; make room or mend it, and try again")
    if any(text in str(error) for text in _NOT_OURS):
        return SchemaMismatch(f"{error}: {_migrate(file, _prefix_in(str(error)))}")
    return StoreError(f"the database {where} refused: {error}")


def _prefix_in(text: str) -> str | None:
    found = _OUR_TABLE.search(text)
    return found and found[1]


def _migrate(file: str, prefix: str | None) -> str:
    same = "" if prefix in (None, _PREFIX) else f" --set outbox.prefix={prefix}"
    if file:
        cure = f"run `pillarbox migrate up --database sqlite:///{file}{same}`"
    else:
        cure = (
            f"this database is in memory: run the script that `pillarbox migrate sql{same}` prints on this connection"
        )
    if prefix is None:
        return cure
    return (
        f"{cure}; if the tables are there, they have another prefix than {prefix!r}, which was looked for:"
        " Outbox(prefix=…), Inbox(prefix=…) and prefix in [outbox] of the settings must be the same; or they are in an"
        " attached file, which SQLite does not commit as one with the main one: put them into the connection's own file"
    )


def check_transaction(connection: Any, cure: str) -> None:
    """Raise NoTransaction unless what is written now can still be rolled back; `connection` is the driver's own."""
    if connection.in_transaction:
        return
    legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
    if not legacy or connection.isolation_level is None:  # otherwise the driver begins by itself before an INSERT
        raise NoTransaction(f"this connection is in autocommit, so nothing could be atomic with your changes: {cure}")
