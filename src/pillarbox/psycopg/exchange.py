"""Exchange: how a consumer's transactions go to the server in few messages (docs/decisions/0019).

A BEGIN goes with the first statement, and a COMMIT with the last. psycopg's wrapper of libpq sends them: a cursor takes
several times as long on its way there, and a message of several statements takes no parameters.
"""

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection, Cursor
from psycopg.pq import ConnStatus, Escaping, ExecStatus, Format, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import TextLoader

from pillarbox.core.insert import Rows, Statement
from pillarbox.core.postgres_facts import StoreConflict
from pillarbox.inbox.steps import refused_at_commit
from pillarbox.psycopg.connection import raise_ours

BROKEN = (psycopg.IntegrityError, psycopg.errors.RaiseException)
"""What constraints that wait for the commit raise: PostgreSQL's own, and those that somebody wrote as a trigger."""
_ENDED = "PB002"
"""What keep_received tells of a handler that has committed by itself."""
_OF_THE_LAST = ("PB001", "25P02")
"""What only the last statement of a transaction fails with: its row is undone, or the transaction failed before."""


class Exchange:
    """Runs a consumer's statements on a Connection."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection, self._pgconn = connection, connection.pgconn
        self._escaping = Escaping(connection.pgconn)
        self._loads: dict[tuple[int, str], Callable[[bytes], Any]] = {}
        self._ended = False
        connection.add_notice_handler(self._note)

    def close(self) -> None:
        """Leave the connection as it was found."""
        self._connection.remove_notice_handler(self._note)

    def run(self, statement: Statement) -> Rows:
        """Run a statement; begin before the first one of a transaction, and commit behind the last."""
        try:
            if self._pgconn.transaction_status == TransactionStatus.IDLE:
                return self._begin(statement)
            if statement.last and (text := self._bound(statement)) is not None:
                return self._commit(text)
            return run(self._connection, statement)
        except psycopg.Error as error:
            raise_ours(error)

    def run_on(self, last: Statement, first: Statement) -> tuple[Rows, Rows]:
        """Run the last statement of a transaction, commit, begin the next one and run its first statement. Raises what
        happened to the first transaction; if it cannot be known whether that was committed, StoreConflict: whoever
        tries it again finds out."""
        end, begin = self._bound(last), self._bound(first)
        if end is None or begin is None:
            return self.run(last), self.run(first)
        self._ended = False
        try:
            rows = self._send(end + b"; COMMIT; " + _begin(self._connection) + b"; " + begin)
        except psycopg.Error as error:
            if self._pgconn.transaction_status == TransactionStatus.IDLE and isinstance(error, BROKEN):
                raise refused_at_commit(error) from error
            if self._pgconn.transaction_status == TransactionStatus.INERROR and error.sqlstate not in _OF_THE_LAST:
                raise StoreConflict(f"a transaction, or the one that followed it, failed: {error}") from error
            raise_ours(error)
        return [(self._ended,)], rows

    def _begin(self, statement: Statement) -> Rows:
        begin, text = _begin(self._connection), self._bound(statement)
        if text is None:
            self._send(begin)
            return run(self._connection, statement)
        return self._send(begin + b"; " + text)

    def _commit(self, text: bytes) -> Rows:
        self._ended = False
        try:
            self._send(text + b"; COMMIT")
        except BROKEN as error:
            raise refused_at_commit(error) from error
        return [(self._ended,)]

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        self._ended = self._ended or notice.sqlstate == _ENDED

    def _bound(self, statement: Statement) -> bytes | None:
        """Write a statement with its parameters in it; None if that takes more than texts and numbers."""
        if statement.rows is not None:
            return None
        encoding = self._encoding()
        literals = []
        for value in statement.parameters:
            if value is None:
                literals.append(b"NULL")
            elif value.__class__ is str and "\0" not in value:
                literals.append(self._escaping.escape_literal(value.encode(encoding)))
            elif isinstance(value, int):
                literals.append(str(value).encode())
            else:
                return None
        return statement.sql.encode() % tuple(literals)

    def _encoding(self) -> str:
        usual = self._pgconn.parameter_status(b"client_encoding") == b"UTF8"
        return "utf-8" if usual else self._connection.info.encoding

    def _send(self, text: bytes) -> Rows:
        """Send a text of several statements; give the rows of the last one."""
        result = self._pgconn.exec_(text)
        if self._pgconn.status == ConnStatus.BAD:
            raise psycopg.OperationalError(self._pgconn.get_error_message())
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            error = psycopg.errors.error_from_result(result, encoding=self._encoding())
            if error.sqlstate is None:  # libpq's own words: what it had to send did not get out, and it learns why next
                raise psycopg.OperationalError(str(error))
            raise error
        if not result.ntuples:
            return ()
        encoding = self._encoding()
        loads = [self._load(result.ftype(column), encoding) for column in range(result.nfields)]
        return [
            tuple(
                None if (value := result.get_value(row, column)) is None else load(value)
                for column, load in enumerate(loads)
            )
            for row in range(result.ntuples)
        ]

    def _load(self, oid: int, encoding: str) -> Callable[[bytes], Any]:
        load = self._loads.get((oid, encoding))
        if load is None:
            loader = self._connection.adapters.get_loader(oid, Format.TEXT) or TextLoader
            load = self._loads[oid, encoding] = loader(oid, self._connection).load
        return load


def _begin(connection: Connection[Any]) -> bytes:
    """Begin as the connection is set to."""
    words = ["BEGIN"]
    if connection.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {connection.isolation_level.name.replace('_', ' ')}")
    if connection.read_only is not None:
        words.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()


def run(connection: Connection[Any], statement: Statement) -> Rows:
    """Run a statement as a cursor does: also in somebody's pipeline."""
    with Cursor(connection, row_factory=tuple_row) as cursor:
        if statement.rows is not None:
            cursor.executemany(statement.sql.encode(), statement.rows)
            return ()
        cursor.execute(statement.sql.encode(), statement.parameters)
        return cursor.fetchall() if cursor.description else ()
