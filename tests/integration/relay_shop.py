"""What the tests of a relay to one broker share: an outbox on SQLite, a relay, and what it has told."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from pillarbox import Event, Settings
from pillarbox.dbapi import Outbox
from pillarbox.ports import Query, Record, Status
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Listener, Moment
from pillarbox.wiring import Relay, open_admin

AGGREGATES = 25
TRIED = {Moment.EVENT_RETRYING, Moment.EVENT_DEAD}
UNSETTLED: tuple[Status, ...] = ("pending", "retrying", "blocked")


class RelayShop:
    """An outbox in a file, and what its relay has told."""

    def __init__(
        self, path: Path, *, batch: int = 100, timeout: float = 2, options: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self._path = path
        self.heard: list[Moment] = []
        self.troubles: list[str] = []
        """What was said of errors, in its order."""
        relay = RelaySettings(
            batch=batch, publish_timeout=timedelta(seconds=timeout), backoff_first=timedelta(seconds=0.1)
        )
        self.settings = Settings(database=f"sqlite:///{path}", relay=relay, options=options or {})

    async def open(self) -> None:
        async with open_admin(self.settings) as admin:
            await admin.migrate()

    def add(self, count: int, *, start: int = 0, topic: str = "orders", padding: int = 0) -> None:
        """Add events, the number of each within its aggregate counting on."""
        events = (
            Event(
                "Placed",
                {"n": n // AGGREGATES, "of": f"{n % AGGREGATES}.", "x": "x" * padding},
                aggregate=("order", n % AGGREGATES),
            )
            for n in range(start, start + count)
        )
        self.put(*events, topic=topic)

    def put(self, *events: Event[Any], topic: str = "orders") -> None:
        """Add these events."""
        with closing(sqlite3.connect(self._path)) as connection, connection:
            Outbox(topic=topic, max_payload=8 << 20).add(connection, *events)

    @asynccontextmanager
    async def relay(self, url: str, *listeners: Listener) -> AsyncIterator[None]:
        async with Relay(self.settings, broker=url, hooks=Hooks(self.hear, *listeners)):
            yield

    def hear(self, moment: Moment, facts: Facts) -> None:
        """Note what the relay tells."""
        self.heard.append(moment)
        if "error" in facts:
            self.troubles.append(f"{moment.value}: {facts['error']}")

    async def records(self, *status: Status) -> list[Record]:
        async with open_admin(self.settings) as admin:
            return list(await admin.find(Query(status=status, limit=10_000)))

    async def until_heard(self, moment: Moment) -> None:
        await until(lambda: moment in self.heard)

    async def until_all_published(self, seconds: float = 60) -> None:
        async def done() -> bool:
            return not await self.records(*UNSETTLED)

        await until_true(done, seconds)


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so; it may take its time to find out."""

    async def asked() -> bool:
        return await asyncio.to_thread(condition)

    await until_true(asked, seconds)


async def until_true(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what a server has tells nobody
            await asyncio.sleep(0.02)
