"""A consumer of a database behind one door, whose handlers are lists of what they do."""

import asyncio
import sqlite3
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.inbox.consumer import Consumer
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock
from tests.integration.receiving_doors import Acts, Door, forget, receiving
from tests.unit.consumer_bench import TOPIC, number_of

EFFECTS = (
    "CREATE TABLE effects (id {serial}, n int NOT NULL)",
    "CREATE TABLE accounts (id int PRIMARY KEY)",
    "CREATE TABLE invoices (account int REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)",
)


def effect(event: Event[Any]) -> str:
    return f"INSERT INTO effects (n) VALUES ({event.payload['n']})"


def looking_on(where: str) -> Any:
    """Connect to a PostgreSQL by its URL, or to a SQLite by its file, without transactions."""
    if where.startswith("postgresql:"):
        return psycopg.connect(where, autocommit=True)
    return sqlite3.connect(where, isolation_level=None)


class Bench:
    """A consumer on a PostgreSQL by its URL, or on a SQLite by its file, behind one door."""

    def __init__(self, url: str, door: Door) -> None:
        self.url, self.door = url, door
        self.clock, self.broker = ManualClock(), MemoryBroker()
        self.moments: list[tuple[Moment, Facts]] = []
        self.on_postgres, self.db = url.startswith("postgresql:"), looking_on(url)
        for sql in EFFECTS:
            serial = "bigint GENERATED ALWAYS AS IDENTITY" if self.on_postgres else "INTEGER PRIMARY KEY"
            self.db.execute(sql.format(serial=serial))
        self.tries: Counter[int] = Counter()
        self._inboxes: list[Any] = []

    def inbox(self, acts: Acts, **options: Any) -> Any:
        def counted(event: Event[Any]) -> Any:
            self.tries[event.payload["n"]] += 1
            return acts(event)

        self._inboxes.append(receiving(self.door, self.url, counted, **options))
        return self._inboxes[-1]

    def consumer(self, inbox: Any, broker: MemoryBroker | None = None, **more: Any) -> Consumer:
        subscriber = (broker or self.broker).subscriber
        return Consumer(
            inbox,
            lambda: subscriber("billing", [TOPIC]),
            RetryPolicy(retries=2, jitter=0),
            8,
            Topics(),
            self.clock,
            Hooks(lambda moment, facts: self.moments.append((moment, facts))),
            **more,
        )

    async def consume(self, inbox: Any, after: float = 0, **more: Any) -> int:
        self.clock.advance(timedelta(seconds=after))
        return await self.consumer(inbox, **more).run_once(patience=0.02)

    async def consume_until_parked(self, inbox: Any) -> None:
        """Let a daemon consume until an event is parked."""
        consuming = asyncio.create_task(self.consumer(inbox).run())
        try:
            async with asyncio.timeout(30):
                while not self.parked():  # noqa: ASYNC110 - another program writes it
                    await asyncio.sleep(0.02)
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)

    def rows(self, sql: str) -> list[Any]:
        return list(self.db.execute(sql).fetchall())

    def applied(self) -> list[int]:
        return [n for (n,) in self.rows("SELECT n FROM effects ORDER BY id")]

    def has_applied(self, n: int) -> bool:
        return n in self.applied()

    def parked(self) -> list[tuple[str, str, int, str]]:
        sql = "SELECT event_id, state, attempts, coalesce(last_error, '') FROM pillarbox_inbox_parked ORDER BY id"
        return [(number_of(id), state, attempts, error) for id, state, attempts, error in self.rows(sql)]

    async def close(self) -> None:
        for inbox in self._inboxes:
            await forget(inbox)
        self.db.close()
