"""A connection to PostgreSQL that is opened anew when it broke, keeps no state in its session, and speaks our errors.

Every statement commits by itself, so it works through a pooler in transaction mode. There nothing is prepared: it would
be lost; plans that matter are kept inside functions.
"""

import asyncio
import re
import select
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from pillarbox.core.postgres_facts import ANOTHER_MODE, MISCONFIGURED, NO_TRANSACTIONS, hint
from pillarbox.core.retry import words_of
from pillarbox.errors import ConfigError, LaneLost, MissingExtra, SchemaMismatch, StoreError, StoreUnavailable

try:
    import psycopg
    from psycopg import errors
    from psycopg.adapt import Loader
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.waiting import Ready, Wait
except ImportError as error:
    raise MissingExtra("postgres", "a postgresql:// database") from error

OLDEST = 140000
STATEMENT_TIMEOUT = 30.0
"""Seconds that a statement may take, unless told otherwise."""
LOST = "PB001"
"""SQLSTATE of our own functions: what the relay has in memory does not hold any more."""
NOT_OURS = "PB002"
"""... somebody else carries the events, and relays must not."""
_QUIET_NETWORK = {"connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_instant = struct.Struct("!q").unpack

Rows = list[tuple[Any, ...]]


class _InUtc(Loader):
    """Reads instants in UTC, whatever time zone the server has for us."""

    format = psycopg.pq.Format.BINARY

    def load(self, data: Any) -> datetime:
        return _EPOCH + timedelta(0, 0, _instant(data)[0])


class _Streaming(psycopg.AsyncConnection[Any]):
    """Takes what has arrived of an answer at once, instead of going through the loop for each packet."""

    async def wait(self, gen: Any, *more: Any, **named: Any) -> Any:
        return await super().wait(self._stream(gen), *more, **named)

    def _stream(self, gen: Any) -> Any:
        arrived = select.poll()
        arrived.register(self.pgconn.socket, select.POLLIN)
        try:
            ready = yield next(gen)
            while True:
                wants = gen.send(ready)
                there = ready == Ready.R and wants == Wait.R and arrived.poll(0)
                ready = Ready.R if there else (yield wants)
        except StopIteration as end:
            return end.value


class Connection:
    """One connection, in autocommit; statements run one after the other."""

    def __init__(self, url: str, name: str) -> None:
        self._conninfo = conninfo(url, name)
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._busy = asyncio.Lock()
        self._warnings: list[str] = []
        self.direct_backend: tuple[int, datetime] | None = None
        """Pid and start of our backend, if no pooler stands between."""

    async def open(self) -> None:
        """Connect, unless it is connected. Raises StoreUnavailable or ConfigError."""
        with failures():
            if self._connection is None:
                await self._connect()

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def run(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        timeout: float = STATEMENT_TIMEOUT,
        often: bool = False,
        after: str | None = None,
    ) -> Rows:
        """Run one statement in a transaction of its own; give its rows. A connection that broke is closed.

        One that is run often is prepared, unless a pooler stands between. One that is to see whatever was committed
        before it got a lock runs `after` the statement that takes it.
        """
        async with self._busy:
            self._warnings.clear()
            try:
                with failures():
                    connection = self._connection or await self._connect()
                    async with asyncio.timeout(timeout):
                        if after is not None:
                            await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                            await connection.execute(after.encode())
                        prepare = often and self.direct_backend is not None
                        cursor = await connection.execute(sql, parameters, binary=True, prepare=prepare)
                        if after is not None:
                            await connection.execute("COMMIT")
                    # Not cursor.description: that describes every column, which takes longer than the rest.
                    return await cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []
            except BaseException:
                await self._after_failure()
                raise

    async def run_sure(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement whose commit must be beyond doubt: a warning counts as failure. (A commit that was cancelled
        while it waited for a synchronous standby reports success, with a warning.)"""
        rows = await self.run(sql, parameters, often=True)
        if self._warnings:
            raise LaneLost(f"the database warned, so its commit is in doubt: {self._warnings[0]}")
        return rows

    async def run_script(self, script: str, *, timeout: float = STATEMENT_TIMEOUT) -> None:
        """Run several statements without parameters in one transaction."""
        async with self._busy:
            try:
                with failures():
                    connection = self._connection or await self._connect()
                    async with asyncio.timeout(timeout):
                        await connection.execute(script.encode())
            except BaseException:
                await self._after_failure()
                raise

    async def _connect(self) -> "psycopg.AsyncConnection[Any]":
        connection = await _Streaming.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        self._connection = connection
        connection.add_notice_handler(self._notice)
        if connection.info.parameter_status("TimeZone") not in ("UTC", "Etc/UTC"):
            connection.adapters.register_loader("timestamptz", _InUtc)
        if connection.info.server_version < OLDEST:
            raise ConfigError(
                f"database: PostgreSQL {connection.info.server_version // 10000} is too old: 14 or later is needed"
            )
        cursor = await connection.execute(
            "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()", binary=True
        )
        row = await cursor.fetchone()
        direct = row is not None and row[0] == connection.info.backend_pid
        self.direct_backend = (row[0], row[1]) if direct and row is not None else None
        return connection

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self._warnings.append(diagnostic.message_primary or "a warning without words")

    async def _after_failure(self) -> None:
        """Let go of a connection whose state is not known."""
        connection = self._connection
        if connection is not None and (
            connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        ):
            self._connection = None
            self.direct_backend = None  # the next one has another backend: naming this one would tell of our death
            await connection.close()


_UNKNOWN = re.compile(r'invalid URI query parameter: "([a-z_]{1,40})"')
_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    "gssencmode": ("disable", "prefer", "require"),
    "channel_binding": ("disable", "prefer", "require"),
}


def conninfo(url: str, name: str) -> str:
    """Complete what the URL says: who we are, and how soon a dead network is noticed."""
    if url.partition("?")[0].count("@") > 1:  # else the rest of the password is taken for a host, and told to everybody
        raise ConfigError("database: there is more than one @: write one that belongs to the password as %40")
    try:
        given = conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeDecodeError) as error:  # whose words repeat a part of the URL
        found = _UNKNOWN.search(str(error))
        known = [option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()]
        # Only a name that is nearly one of libpq's is told: another one may be a part of a password.
        if found is not None and (near := get_close_matches(found[1], known, 1, 0.8)):
            raise ConfigError(
                f"database: PostgreSQL knows no parameter {found[1]!r}: the nearest known one is {near[0]!r}"
            ) from None
        raise ConfigError(
            "database: what was given is no PostgreSQL URL: write postgresql://user@host/name, with user and password"
            " percent-encoded (% as %25, a space as %20)"
        ) from None
    _check_parameters(given)
    return make_conninfo("", **{"application_name": name, **_QUIET_NETWORK, **given})


def _check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse what libpq would only refuse when it connects, as if the server were away."""
    for port in filter(None, str(given.get("port", "")).split(",")):
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise ConfigError("database: port: what was given is no number from 1 to 65535")
    for name, known in _CHOICES.items():
        if name in given and given[name] not in known:
            raise ConfigError(f"database: {name}: what was given is none of {', '.join(known)}")


@contextmanager
def failures() -> Iterator[None]:
    """Turn what psycopg raises into our errors, most specific first."""
    try:
        yield
    except TimeoutError as error:
        raise StoreUnavailable("PostgreSQL did not answer in time") from error
    except (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName, errors.UndefinedColumn) as error:
        raise SchemaMismatch(
            f"the Pillarbox tables are not as they should be ({_first_line(error)}): run pillarbox migrate up"
        ) from error
    except errors.InsufficientPrivilege as error:
        raise StoreError(
            f"PostgreSQL refuses: {_first_line(error)}; `pillarbox migrate sql --roles` prints what grants the rights"
        ) from error
    except (errors.ReadOnlySqlTransaction, errors.FeatureNotSupported) as error:
        raise StoreUnavailable(f"PostgreSQL takes no writes here, it may be a standby: {_first_line(error)}") from error
    except (
        errors.SerializationFailure,
        errors.DeadlockDetected,
        errors.LockNotAvailable,
        errors.QueryCanceled,
    ) as error:
        raise StoreUnavailable(f"PostgreSQL: {_first_line(error)}") from error
    except errors.ProgramLimitExceeded as error:
        raise StoreError(f"PostgreSQL: {_first_line(error)}") from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        words = _first_line(error)
        if NO_TRANSACTIONS in words:
            raise ConfigError(f"database: {ANOTHER_MODE}") from error
        if any(sign in words for sign in MISCONFIGURED):
            raise ConfigError(f"database: {words}{hint(words)}") from error
        raise StoreUnavailable(f"PostgreSQL is away: {words}") from error
    except psycopg.Error as error:
        if error.sqlstate is None and isinstance(error, psycopg.InternalError):
            # psycopg's own: answers that do not fit, as where a session is ended in the middle of its commit.
            raise StoreUnavailable(f"PostgreSQL is away: {_first_line(error)}") from error
        if error.sqlstate == LOST:
            raise LaneLost("another relay has taken lanes, or the server is not the one it was") from error
        if error.sqlstate == NOT_OURS:
            raise StoreError(_first_line(error)) from error
        raise StoreError(f"PostgreSQL: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return words_of(error).strip().splitlines()[0]
