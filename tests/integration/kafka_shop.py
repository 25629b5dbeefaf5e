"""What the tests with a relay to Kafka share: an outbox on SQLite, a relay, and what arrived."""

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from pillarbox import Event, Settings
from pillarbox.dbapi import Outbox
from pillarbox.ports import Query, Record, Status
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay, open_admin
from servers.kafka import Kafka
from tests.integration.kafka_topics import records_of

AGGREGATES = 25
TRIED = {Moment.EVENT_RETRYING, Moment.EVENT_DEAD}
UNSETTLED: tuple[Status, ...] = ("pending", "retrying", "blocked")


class KafkaShop:
    """An outbox in a file, and what its relay has told."""

    def __init__(self, path: Path, *, batch: int = 100, timeout: float = 2) -> None:
        self._path = path
        self.heard: list[Moment] = []
        relay = RelaySettings(
            batch=batch, publish_timeout=timedelta(seconds=timeout), backoff_first=timedelta(seconds=0.1)
        )
        self.settings = Settings(database=f"sqlite:///{path}", relay=relay)

    async def open(self) -> None:
        async with open_admin(self.settings) as admin:
            await admin.migrate()

    def add(self, count: int, *, start: int = 0, topic: str = "orders", padding: int = 0) -> None:
        """Add events, the number of each within its aggregate counting on."""
        outbox = Outbox(topic=topic, max_payload=8 << 20)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            outbox.add(
                connection,
                *(
                    Event("Placed", {"n": n // AGGREGATES, "x": "x" * padding}, aggregate=("order", n % AGGREGATES))
                    for n in range(start, start + count)
                ),
            )

    @asynccontextmanager
    async def relay(self, url: str) -> AsyncIterator[None]:
        def hear(moment: Moment, _: Facts) -> None:
            self.heard.append(moment)

        async with Relay(self.settings, broker=url, hooks=Hooks(hear)):
            yield

    async def records(self, *status: Status) -> list[Record]:
        async with open_admin(self.settings) as admin:
            return list(await admin.find(Query(status=status, limit=10_000)))

    async def until_all_published(self, seconds: float = 60) -> None:
        async def done() -> bool:
            return not await self.records(*UNSETTLED)

        await until_true(done, seconds)


def check_arrived(server: Kafka, topic: str, expected: int) -> int:
    """See that nothing is lost and first copies are in order per aggregate; give how many copies there are."""
    ids: set[str] = set()
    numbers: dict[str, list[int]] = defaultdict(list)
    found = records_of(server, topic)
    for record in found:
        pairs: Any = record.headers()
        headers = {name: value.decode() for name, value in pairs}
        if headers["id"] not in ids:
            ids.add(headers["id"])
            numbers[headers["aggregate_id"]].append(json.loads(record.value() or b"")["n"])
    assert len(ids) == expected, f"{len(ids)} events of {expected} arrived"
    for of_one in numbers.values():
        assert of_one == sorted(of_one)
    return len(found) - len(ids)


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async def asked() -> bool:
        return await asyncio.to_thread(condition)

    await until_true(asked, seconds)


async def until_true(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)
