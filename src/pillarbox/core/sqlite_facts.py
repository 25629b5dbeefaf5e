"""What SQLite's error codes and connection modes mean for an application. Pure; every door on SQLite asks here."""

from typing import Any

from pillarbox.errors import NoTransaction, SchemaMismatch, StoreError, StoreUnavailable

BUSY, LOCKED, IO_ERROR, FULL, CANNOT_OPEN = 5, 6, 10, 13, 14
BUSY_SNAPSHOT = 517
LEGACY = -1
"""sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not name."""

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
        return SchemaMismatch(f"{error}: {_migrate(file)}")
    return StoreError(f"the database {where} refused: {error}")


def _migrate(file: str) -> str:
    if not file:
        return "this database is in memory: run the script that `pillarbox migrate sql` prints on this connection"
    return f"run `pillarbox migrate up --database sqlite:///{file}`"


def check_transaction(connection: Any, cure: str) -> None:
    """Raise NoTransaction unless what is written now can still be rolled back; `connection` is the driver's own."""
    if connection.in_transaction:
        return
    legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
    if not legacy or connection.isolation_level is None:  # otherwise the driver begins by itself before an INSERT
        raise NoTransaction(f"this connection is in autocommit, so nothing could be atomic with your changes: {cure}")
