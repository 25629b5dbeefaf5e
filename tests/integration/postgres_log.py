"""A log on PostgreSQL whose ticks are written by hand: what a relay would have settled is said in plain SQL."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.mending import Mending
from pillarbox.stores.postgres.records import Finder
from pillarbox.stores.postgres.replaying import Replaying
from pillarbox.stores.postgres.retention import Pruner
from pillarbox.stores.postgres.schema import Tables
from pillarbox.stores.postgres.stats import Overview

PLACE = "public.pillarbox_"
START = datetime(2026, 1, 1, tzinfo=UTC)
_REACHED = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS m FROM pillarbox_outbox_id_seq"
Transaction = psycopg.Connection[Any]


class PostgresLog:
    """The tables, a connection as the store has one, a clock that stands still, and positions set by hand."""

    def __init__(self, url: str, connection: Connection) -> None:
        self.url, self.connection = url, connection
        self.finder = Finder(PLACE)
        self.overview = Overview(PLACE, self.finder)
        self.mending = Mending(PLACE, self.finder)
        self.replaying = Replaying(PLACE, self.finder)
        self.pruner = Pruner(PLACE)
        self.now = START
        self._sql = psycopg.connect(url, autocommit=True)
        self._opened: list[Transaction] = []

    def sql(self, text: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own."""
        cursor = self._sql.execute(text.encode() if parameters is None else text, parameters)
        return cursor.fetchall() if cursor.description else []

    def one(self, text: str, parameters: Sequence[Any] | None = None) -> Any:
        """Give the one value that a statement gives."""
        [[value]] = self.sql(text, parameters)
        return value

    def begin(self) -> Transaction:
        """Open a transaction."""
        transaction = psycopg.connect(self.url)
        self._opened.append(transaction)
        return transaction

    def add(
        self,
        *types: str,
        topic: str = "orders",
        aggregate: str = "1",
        event_id: UUID | None = None,
        within: Transaction | None = None,
    ) -> int:
        """Add events, in a transaction of their own or in one that is open; give the last one's id."""
        position = 0
        for type in types:
            row = (within or self._sql).execute(
                "INSERT INTO pillarbox_outbox (event_id, aggregate_type, aggregate_id, event_type, topic, payload)"
                " VALUES (coalesce(%s, gen_random_uuid()), 'order', %s, %s, %s, '{}') RETURNING id",
                [event_id, aggregate, type, topic],
            )
            [position] = row.fetchone() or (0,)
        return position

    def tick(self, lanes: int = -1, topic: str | None = None, *, whole: bool = False, closed: bool = False) -> None:
        """Settle everything that is visible now, in these lanes, for one topic or for all."""
        self.sql(
            "INSERT INTO pillarbox_ticks (token, owner, lanes, topic, whole, closed, s1, x1, m1, s2, x2, m2, published,"
            " cluster)"
            " SELECT gen_random_uuid(), 'hand', %s, %s, %s, %s, pg_current_snapshot(), pg_current_xact_id(), m,"
            " pg_current_snapshot(), pg_current_xact_id(), m, 1, pillarbox_cluster()"
            f" FROM ({_REACHED}) s",
            [lanes, topic, whole, closed],
        )

    def tick_up_to(self, last: int) -> None:
        """Settle, of what is visible now, everything up to an id; the batch began at the newest tick."""
        self.sql(
            "INSERT INTO pillarbox_ticks (token, owner, lanes, s1, x1, m1, s2, x2, m2, last_id, cluster)"
            " SELECT gen_random_uuid(), 'hand', -1, t.s1, t.x1, t.m1, pg_current_snapshot(), pg_current_xact_id(), m,"
            " %s, pillarbox_cluster()"
            f" FROM ({_REACHED}) s, (SELECT * FROM pillarbox_ticks WHERE topic IS NULL ORDER BY n DESC LIMIT 1) t",
            [last],
        )

    def park(self, position: int, state: str, **columns: Any) -> int:
        """Park a copy of an event."""
        columns = {"state": state, **columns}
        event = "event_id, aggregate_type, aggregate_id, event_type, topic, payload, created_at"
        return int(
            self.one(
                f"INSERT INTO pillarbox_parked (position, lane, {event}, {', '.join(columns)})"
                f" SELECT id, lane, {event}, {', '.join('%s' for _ in columns)} FROM pillarbox_outbox WHERE id = %s"
                " RETURNING id",
                [*columns.values(), position],
            )
        )

    def in_log(self) -> list[str]:
        """List what the log holds."""
        return [row[0] for row in self.sql("SELECT event_type FROM pillarbox_outbox ORDER BY id")]

    def statuses(self) -> dict[str, str]:
        """Say how every event is."""
        return dict(self.sql("SELECT event_type, status FROM pillarbox_events"))

    async def somebody_waits(self) -> None:
        """Return when a statement waits for a lock."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        for _ in range(1000):
            if self.one(waiting):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody waits for a lock")

    def stop_the_clock(self) -> None:
        """Let the database go by a time of ours."""
        self.sql("CREATE TABLE test_clock AS SELECT %s::timestamptz AS at", [START])
        self.sql(
            "CREATE OR REPLACE FUNCTION pillarbox_now() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS 'SELECT at FROM public.test_clock'"
        )
        self.sql("UPDATE pillarbox_ticks SET at = %s", [START])

    def advance(self, by: timedelta | float) -> None:
        """Move the database's time on."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        self.sql("UPDATE test_clock SET at = %s", [self.now])

    def close(self) -> None:
        for connection in (*self._opened, self._sql):
            connection.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresLog]:
    """Make the tables in an empty database; nothing is settled yet, and the clock stands still."""
    connection = Connection(url, "pillarbox test")
    await Tables("public", "pillarbox_").up(connection)
    log = PostgresLog(url, connection)
    log.stop_the_clock()
    try:
        yield log
    finally:
        log.close()
        await connection.close()
