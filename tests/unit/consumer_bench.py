"""A consumer on the bench: the real one on a SQLite file and the memory broker, with a clock that is moved by hand."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.message import Delivery, Message
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topic, Topics
from pillarbox.dbapi import Inbox
from pillarbox.inbox.consumer import Consumer
from pillarbox.ports import Subscriber
from pillarbox.stores.sqlite.schema import Tables
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock

TOPIC = "order-events"


def id_of(number: int) -> str:
    return str(UUID(int=number))


def message(n: int, order: str | None = "7", type: str = "OrderPlaced", **headers: str) -> Message:
    """Make the message of event `n`, of the aggregate order/`order`."""
    of = {"aggregate_type": "order", "aggregate_id": order} if order else {}
    return Message(TOPIC, order, {"id": id_of(n), "type": type, **of, **headers}, json.dumps({"n": n}).encode())


class ConsumerBench:
    """What a test needs: `publish`, `consume`, and looks at what became of it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "billing.db")
        self.clock, self.broker = ManualClock(), MemoryBroker()
        self.moments: list[tuple[Moment, Facts]] = []
        self.policy = RetryPolicy(retries=2, jitter=0)
        self.topics = Topics()
        self.on: Callable[[Moment, Facts], None] = lambda moment, facts: None
        self.db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        Tables(self.path, "pillarbox_").up(self.db)
        self.db.execute("CREATE TABLE effects (n INTEGER)")
        self.inbox = Inbox("billing", self.connect)

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=0.2)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def publish(self, *messages: Message) -> None:
        self.broker.receive(messages)

    def consumer(
        self, inbox: Any = None, open_subscriber: Callable[[], Subscriber] | None = None, **more: Any
    ) -> Consumer:
        return Consumer(
            inbox or self.inbox,
            open_subscriber or (lambda: self.broker.subscriber("billing", [TOPIC])),
            self.policy,
            more.pop("concurrency", 8),
            self.topics,
            self.clock,
            Hooks(self._hear),
            **more,
        )

    async def consume(self, inbox: Any = None, **more: Any) -> int:
        """Consume until nothing is there; give how many were handled."""
        return await self.consumer(inbox, **more).run_once(patience=0.01)

    async def later(self, seconds: float, **more: Any) -> int:
        """Move the clock, and consume."""
        self.clock.advance(timedelta(seconds=seconds))
        return await self.consume(**more)

    def _hear(self, moment: Moment, facts: Facts) -> None:
        self.moments.append((moment, facts))
        self.on(moment, facts)

    def told(self, moment: Moment) -> list[Facts]:
        return [facts for one, facts in self.moments if one is moment]

    def applied(self) -> list[int]:
        return [n for (n,) in self.db.execute("SELECT n FROM effects ORDER BY rowid")]

    def parked(self) -> list[tuple[str, str, int]]:
        """List what is in the parking lot: event, state, attempts."""
        sql = "SELECT event_id, state, attempts FROM pillarbox_inbox_parked ORDER BY id"
        return [(number_of(id), state, attempts) for id, state, attempts in self.db.execute(sql)]

    def column(self, name: str, number: int = 1) -> Any:
        sql = f"SELECT {name} FROM pillarbox_inbox_parked WHERE event_id = ?"
        return self.db.execute(sql, [id_of(number)]).fetchone()[0]

    def unacknowledged(self) -> int:
        """Count what the broker would deliver again to somebody new."""
        group = self.broker._groups["billing"]
        return sum(len(self.broker.read(partition, row.position, 1000)) for partition, row in group.rows.items())

    def close(self) -> None:
        self.db.close()


def number_of(id: str) -> str:
    """Write an id of ours as its number, and anything else as it is."""
    head, _, tail = id.partition("/")
    try:
        return str(UUID(head).int) + (f"/{tail}" if tail else "")
    except ValueError:
        return id


class Deliveries:
    """A subscriber that delivers what it is given, once, and remembers what was acknowledged."""

    def __init__(self, *deliveries: Delivery) -> None:
        self._left, self.acknowledged = list(deliveries), list[Delivery]()

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        given, self._left = self._left[:room], self._left[room:]
        return given

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.acknowledged += deliveries

    async def close(self) -> None:
        """There is nothing to leave."""


SKIP = {TOPIC: Topic(when_dead="skip")}
