"""What the tests of the SQLite store share: a store on a file, events by plain SQL, a second process."""

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pillarbox.core.routing import Topics
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.telemetry.hooks import Hooks, Listener
from pillarbox.testing.clock import ManualClock


class Shop:
    """A database file and the stores that were opened on it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.clock = ManualClock()
        self._opened: list[SqliteStore] = []

    def closed_store(
        self, owner: str = "a", *listeners: Listener, prefix: str = "pillarbox_", topics: Topics | None = None
    ) -> SqliteStore:
        store = SqliteStore(
            self.path,
            owner=owner,
            prefix=prefix,
            lease=timedelta(seconds=15),
            topics=topics or Topics(),
            clock=self.clock,
            hooks=Hooks(*listeners),
        )
        self._opened.append(store)
        return store

    async def store(self, owner: str = "a", *listeners: Listener, topics: Topics | None = None) -> SqliteStore:
        store = self.closed_store(owner, *listeners, topics=topics)
        await store.open()
        await store.up()
        return store

    async def holder(self, owner: str = "a", *listeners: Listener) -> SqliteStore:
        store = await self.store(owner, *listeners)
        assert (await store.take()).lanes
        return store

    def sql(self, text: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(text, parameters).fetchall()
        finally:
            connection.close()

    def add(self, *types: str, topic: str = "orders", aggregate: str = "1", payload: str = "{}") -> None:
        """Add events by plain SQL, in one transaction."""
        connection = sqlite3.connect(self.path)
        connection.executemany(
            "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
            " VALUES ('order', ?, ?, ?, ?)",
            [(aggregate, type, topic, payload) for type in types],
        )
        connection.commit()
        connection.close()

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


async def on_connection(store: SqliteStore, work: Callable[[sqlite3.Connection], Any]) -> Any:
    """Do something on the store's own connection, in its thread."""
    return await store._connection.run(work)


async def statements(store: SqliteStore, work: Callable[[], Awaitable[None]]) -> list[str]:
    """List the statements that run on the store's connection during some work."""
    seen: list[str] = []
    await on_connection(store, lambda db: db.set_trace_callback(seen.append))
    await work()
    await on_connection(store, lambda db: db.set_trace_callback(None))
    return seen
