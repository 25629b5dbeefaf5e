"""What the benches of all doors on PostgreSQL share: a database with our tables, read without any door's help."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile
from typing import Any

import psycopg
from psycopg.rows import dict_row

from pillarbox.testing.contracts.door import DoorFeatures

FEATURES = DoorFeatures()
EFFECT = "INSERT INTO effects VALUES ('{}')"
_TABLES = ("outbox", "numbers", "keys", "inbox", "inbox_parked")
_COLUMNS = (
    "id, event_id::text, aggregate_type, aggregate_id, event_type, topic, payload::text, body, content_type,"
    " headers::text, idempotency_key, number, (extract(epoch FROM available_at) * 1000000)::bigint AS available_at,"
    " (extract(epoch FROM occurred_at) * 1000000)::bigint AS occurred_at, lane"
)


class DoorDatabase:
    """The benches' database, empty."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._reader = psycopg.connect(self.url, autocommit=True, row_factory=dict_row)
        for table in ("effects", *(f"pillarbox_{name}" for name in _TABLES)):
            self._reader.execute(f"DELETE FROM {table}".encode())

    def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        if table == "outbox":
            return self._reader.execute(f"SELECT {_COLUMNS} FROM pillarbox_outbox ORDER BY id".encode()).fetchall()
        name = "effects" if table == "effects" else f"pillarbox_{table}"
        return self._reader.execute(f"SELECT * FROM {name}".encode()).fetchall()

    def close(self) -> None:
        self._reader.close()


class PostgresBench:
    """What the benches have in common."""

    features = FEATURES

    def __init__(self, url: str) -> None:
        self.database = DoorDatabase(url)

    async def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        return await asyncio.to_thread(self.database.rows, table)


class Wire:
    """Counts what a libpq connection has sent and waited for, as libpq itself writes it down."""

    def __init__(self) -> None:
        self._file = TemporaryFile("w+b")  # noqa: SIM115 - closed with the bench
        self._traced: list[psycopg.pq.abc.PGconn] = []

    def trace(self, connection: Any) -> None:
        self._traced.append(connection.pgconn)
        connection.pgconn.trace(self._file.fileno())

    def round_trips(self) -> int:
        for pgconn in self._traced:
            pgconn.untrace()  # writes out what it has kept back
            pgconn.trace(self._file.fileno())
        written = os.pread(self._file.fileno(), 1 << 26, 0).splitlines()
        return sum(b"\tF\t" in line and (b"\tSync" in line or b"\tQuery" in line) for line in written)

    def close(self) -> None:
        for pgconn in self._traced:
            pgconn.untrace()
        self._file.close()
