"""What the tests of RabbitMQ share: an outbox on SQLite, a relay to a virtual host, and what arrived there."""

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import aiormq
from aiormq.abc import DeliveredMessage

from pillarbox import Event, Relay, Settings
from pillarbox.brokers.rabbitmq.frames import read
from pillarbox.core.message import Message
from pillarbox.dbapi import Outbox
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import open_admin
from servers.rabbitmq import RabbitMQ
from tests.contracts.rabbitmq_bench import stored_in


class RabbitShop:
    """An outbox in a file, whose events go to the queue `order-events` of a virtual host."""

    def __init__(self, path: Path, server: RabbitMQ, vhost: str) -> None:
        self.path, self.server, self.vhost = path, server, vhost
        self.database = f"sqlite:///{path / 'shop.db'}"

    async def open(self) -> None:
        async with open_admin(Settings(database=self.database)) as admin:
            await admin.migrate()
        self.server.declare_queue(self.vhost, "order-events")

    def add(self, count: int, aggregates: int = 20, *, first: int = 0, payload: str = "") -> None:
        """Add events whose payloads count on, spread over aggregates."""
        with closing(sqlite3.connect(self.path / "shop.db")) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            events = (
                Event("OrderPlaced", {"n": n, "text": payload}, aggregate=("order", n % aggregates))
                for n in range(first, first + count)
            )
            Outbox(max_payload=8 << 20).add(connection, *events)

    def relay(
        self, url: str | None = None, *, batch: int = 1000, timeout: float = 10, hooks: Hooks | None = None
    ) -> Relay:
        settings = Settings(
            database=self.database,
            broker=url or self.server.url(unquote(self.vhost)),
            relay=RelaySettings(batch=batch, publish_timeout=timedelta(seconds=timeout)),
        )
        return Relay(settings, hooks=hooks)

    def counts(self) -> dict[str, int]:
        """Count what is parked and not published, by state."""
        with closing(sqlite3.connect(self.path / "shop.db")) as connection:
            rows = connection.execute("SELECT state FROM pillarbox_parked WHERE state <> 'published'").fetchall()
        return dict(Counter(state for (state,) in rows))

    def errors(self) -> list[str]:
        """List the last words about the events that are parked and were tried."""
        with closing(sqlite3.connect(self.path / "shop.db")) as connection:
            return [row[0] for row in connection.execute("SELECT last_error FROM pillarbox_parked WHERE attempts > 0")]

    async def pending(self) -> int:
        """Count what is not published."""
        async with open_admin(Settings(database=self.database)) as admin:
            stats = await admin.stats()
        return stats.pending + stats.retrying + stats.blocked

    async def until_empty(self, seconds: float = 90) -> None:
        """Wait until everything is published. Do not look into the queue meanwhile: what is looked at goes back one by
        one, and whoever looks again too soon sees another order."""
        async with asyncio.timeout(seconds):
            while await self.pending():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)

    async def drained(self, queue: str = "order-events") -> Sequence[Message]:
        """Take everything off a queue, in order; the way for many, which to look at one by one takes too long."""
        client = await aiormq.connect(self.server.url(unquote(self.vhost)).replace("rabbitmq:", "amqp:"))
        found: list[Message] = []

        async def take(one: DeliveredMessage) -> None:
            properties = one.header.properties
            found.append(read(queue, properties.headers or {}, properties.content_type, one.body)[0])

        try:
            channel = await client.channel()
            count = (await channel.queue_declare(queue, passive=True)).message_count or 0
            await channel.basic_consume(queue, take, no_ack=True)
            await until(lambda: len(found) >= count)
        finally:
            await client.close()
        return found

    def arrived(self, queue: str = "order-events") -> Sequence[Message]:
        return stored_in(self.server, self.vhost, queue)


def first_copies(messages: Sequence[Message]) -> list[Message]:
    """Leave out what came before with the same id."""
    found: dict[str, Message] = {}
    for message in messages:
        found.setdefault(message.headers["id"], message)
    return list(found.values())


def in_order(messages: Sequence[Message]) -> bool:
    """Tell whether the first copies of each key count upwards."""
    last: dict[str | None, int] = {}
    for message in first_copies(messages):
        if last.get(message.key, -1) >= number_of(message):
            return False
        last[message.key] = number_of(message)
    return True


def number_of(message: Message) -> int:
    return int(json.loads(message.body)["n"])


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.05)
