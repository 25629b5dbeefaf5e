"""Numbers, the whole way: an outbox that counts, a broker that loses or repeats, a consumer that notices.

On every broker that keeps the order.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from pillarbox import Consumer, Event, Relay, Settings, dbapi
from pillarbox import psycopg as postgres
from pillarbox.core.message import Message
from pillarbox.ports import Outcome, Publisher, Retention
from pillarbox.settings import RetentionSettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import open_admin, open_publisher
from tests.acceptance.streams import STREAMS, Stream, stream_on

KEPT = timedelta(days=30)


class Losing:
    """The near end of a broker that says of some events that it has them, and loses them."""

    def __init__(self, broker: Publisher, lost: set[bytes]) -> None:
        self._broker, self._lost = broker, lost
        self._lies: list[Outcome] = []
        self.sent: list[Message] = []
        self.prefix_safe = broker.prefix_safe
        self.close = broker.close

    def publisher(self) -> Publisher:
        return self

    def send(self, messages: Sequence[Message]) -> None:
        self._lies += [Outcome(message.ticket, None) for message in messages if message.body in self._lost]
        kept = [message for message in messages if message.body not in self._lost]
        self.sent += kept
        if kept:
            self._broker.send(kept)

    async def outcomes(self) -> Sequence[Outcome]:
        lies, self._lies = self._lies, []
        return lies or await self._broker.outcomes()


class Shop:
    """An outbox and an inbox in one database, and a broker between them."""

    def __init__(self, url: str, stream: Stream) -> None:
        self._url, self._stream = url, stream
        self._sqlite = url.startswith("sqlite")
        self._settings = Settings(database=url, broker=stream.url, retention=RetentionSettings(inbox=KEPT))
        self.gives_all_at_once = stream.url.startswith("sqlite")
        """Its first delivery has all that it has; others may give it in pieces."""
        self._lost: set[bytes] = set()
        self._sent: list[Message] = []
        self.moments: list[tuple[Moment, Facts]] = []
        asyncio.run(self._migrate())
        serial = "INTEGER" if self._sqlite else "bigserial"
        self.query(f"CREATE TABLE invoices (id {serial} PRIMARY KEY, customer text, n integer)")

    async def _migrate(self) -> None:
        async with open_admin(self._settings) as admin:
            await admin.migrate()

    def connect(self) -> Any:
        if self._sqlite:
            return sqlite3.connect(self._url.removeprefix("sqlite:///"))
        return psycopg.connect(self._url)

    def query(self, sql: str) -> Sequence[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection:
            cursor = connection.execute(sql)
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return rows

    def add(self, *numbers: int, order: int = 7, days_ago: float = 0) -> None:
        """Add numbered events of an order; `n` tells one from the others."""
        outbox: Any = dbapi.Outbox() if self._sqlite else postgres.Outbox()
        with closing(self.connect()) as connection, connection:
            for n in numbers:
                id = made(days_ago, n)
                place: Any = {"aggregate": ("order", order), "topic": self._stream.topic, "numbered": True}
                outbox.add(connection, Event("OrderPlaced", {"n": n}, id=id, **place))

    def relay(self) -> None:
        async def relay() -> Sequence[Message]:
            broker = Losing(open_publisher(self._settings), self._lost)
            await Relay(self._settings, broker=broker, hooks=Hooks()).run_once()
            return broker.sent

        self._sent += asyncio.run(relay())

    def consume(self) -> None:
        inbox: Any = (dbapi if self._sqlite else postgres).Inbox("billing", self.connect)
        mark = "?" if self._sqlite else "%s"

        def bill(connection: Any, event: Event[Any]) -> None:
            bought = [event.aggregate[1] if event.aggregate else None, event.payload["n"]]
            connection.execute(f"INSERT INTO invoices (customer, n) VALUES ({mark}, {mark})", bought)

        inbox.handler("OrderPlaced")(bill)
        self.moments.clear()
        hooks = Hooks(lambda moment, facts: self.moments.append((moment, facts)))
        while True:
            consumer = Consumer(inbox, topics=[self._stream.topic], settings=self._settings, hooks=hooks)
            asyncio.run(consumer.run_once(patience=0.1))
            if not self._stream.unread():
                return

    def lose(self, n: int) -> None:
        """Let the broker lose an event that is yet to come."""
        self._lost.add(json.dumps({"n": n}, separators=(",", ":")).encode())

    def repeat(self) -> None:
        """Let the broker have a copy of everything, behind everything."""
        self._stream.publish(self._sent)

    def forget(self, days: int) -> None:
        """Let days pass for what the inbox remembers, and prune."""
        ago = f"{days} * 86400000000" if self._sqlite else f"interval '{days} days'"
        self.query(f"UPDATE pillarbox_inbox SET handled_at = handled_at - {ago}")

        async def prune() -> None:
            async with open_admin(self._settings) as admin:
                await admin.prune(Retention(None, None, KEPT))

        asyncio.run(prune())
        assert self.query("SELECT * FROM pillarbox_inbox") == []

    def billed(self, order: int = 7) -> list[int]:
        return [n for (n,) in self.query(f"SELECT n FROM invoices WHERE customer = '{order}' ORDER BY id")]

    def parked(self) -> list[tuple[Any, ...]]:
        sql = "SELECT number, state, numbering FROM pillarbox_inbox_parked WHERE state <> 'handled' ORDER BY id"
        return list(self.query(sql))

    def copies(self) -> int:
        """Count what the last consumer acknowledged as copies."""
        return sum(int(str(facts["copies"])) for moment, facts in self.moments if moment is Moment.ACKNOWLEDGED)

    def told(self) -> list[Moment]:
        return [moment for moment, _ in self.moments]


def made(days_ago: float, n: int) -> UUID:
    """Give the id of an event that was made so many days ago."""
    at = int((datetime.now(UTC) - timedelta(days=days_ago)).timestamp() * 1000)
    return UUID(int=at << 80 | 7 << 76 | 2 << 62 | n)


PLACES = [
    pytest.param(
        (broker, database), marks=[] if broker == "embedded" else [pytest.mark.soak], id=f"{broker}, {database}"
    )
    for broker in STREAMS
    for database in ("SQLite", "PostgreSQL")
]


@pytest.fixture(params=PLACES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    broker, database = request.param
    sqlite = f"sqlite:///{tmp_path / 'shop.db'}"
    with stream_on(broker, f"orders-{uuid4().hex[:8]}", tmp_path, request) as stream:
        yield Shop(sqlite if database == "SQLite" else request.getfixturevalue("database"), stream)


def test_copies_that_come_long_after_their_ids_were_pruned_are_recognised(shop: Shop) -> None:
    shop.add(1, 2, 3, days_ago=31)
    shop.relay()
    shop.consume()
    shop.forget(days=31)
    shop.repeat()
    shop.consume()
    assert (shop.billed(), shop.copies()) == ([1, 2, 3], 3)
    shop.add(4)
    shop.relay()
    shop.consume()
    assert (shop.billed(), shop.parked()) == ([1, 2, 3, 4], [])


def test_a_number_that_was_removed_is_noticed_with_the_first_delivery_and_nothing_later_is_applied(shop: Shop) -> None:
    shop.add(1, 2, 3, 4)
    shop.add(11, 12, order=8)
    shop.lose(2)
    shop.relay()
    shop.consume()
    told = shop.told()
    if shop.gives_all_at_once:
        assert told[: told.index(Moment.NUMBER_MISSING)].count(Moment.DELIVERED) == 1
    assert told.count(Moment.NUMBER_MISSING) == 1
    assert (shop.billed(), shop.billed(8)) == ([1], [11, 12])
    assert shop.parked() == [(3, "dead", "gap"), (4, "blocked", None)]
    shop.add(5)
    shop.relay()
    shop.consume()
    assert shop.billed() == [1]
    assert shop.parked() == [(3, "dead", "gap"), (4, "blocked", None), (5, "blocked", None)]


def test_a_counter_that_stepped_back_is_a_conflict_that_is_parked_and_nothing_is_dropped(shop: Shop) -> None:
    shop.add(1, 2, 3)
    shop.add(11, order=8)
    shop.relay()
    shop.consume()
    shop.query("UPDATE pillarbox_numbers SET last = 1 WHERE aggregate_id = '7'")  # as it is after a restore
    shop.add(102, 103, 104)
    shop.add(12, order=8)
    shop.relay()
    shop.consume()
    assert (shop.billed(), shop.billed(8)) == ([1, 2, 3], [11, 12])
    assert shop.parked() == [(2, "dead", "conflict"), (3, "blocked", None), (4, "blocked", None)]
    assert shop.told().count(Moment.NUMBER_CONFLICT) == 1
