"""What PostgreSQL's error codes mean for an application. Pure; every door on PostgreSQL asks here."""

from pillarbox.errors import SchemaMismatch, StoreError, StoreUnavailable

_NOT_OURS = ("42P01", "42703", "42883", "3F000")  # no such table, column, function, schema
_AGAIN = ("40001", "40P01", "55P03", "57014")  # serialization failure, deadlock, no lock in time, cancelled
_AWAY = ("08", "53", "57P")  # connection, resources, shutdown
_READ_ONLY, _FAILED, _NO_RIGHT = "25006", "25P02", "42501"


def error_of(error: BaseException, sqlstate: str | None) -> StoreError:
    """Give our error for one of a driver's; without an SQLSTATE the connection itself broke."""
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    code = sqlstate or ""
    if code in _NOT_OURS:
        return SchemaMismatch(f"{words}: run `pillarbox migrate up --database postgresql://…`")
    if code == _NO_RIGHT:
        return StoreError(f"{words}: grant this user the writer's role, which the script with the roles makes")
    if code == _FAILED:
        return StoreError(f"an earlier statement of this transaction failed ({words}): roll back and begin again")
    if code == _READ_ONLY:
        return StoreUnavailable(f"{words}: this may be a standby; connect to the primary and try again")
    if code in _AGAIN:
        return StoreUnavailable(f"{words}; roll back and try again")
    if not code or code.startswith(_AWAY):
        return StoreUnavailable(f"PostgreSQL is away: {words}; connect and try again")
    return StoreError(f"PostgreSQL refused: {words}")
