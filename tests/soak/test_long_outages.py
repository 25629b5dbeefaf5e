"""Outages that last minutes, with real relays: nothing counted, nothing lost, nothing reordered."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from pillarbox import Event, Settings
from pillarbox.dbapi import Outbox
from pillarbox.ports import Query, Record
from pillarbox.testing.contracts.publisher import bodies
from pillarbox.wiring import open_admin
from servers.kafka import Kafka
from servers.nats import Nats, make_stream
from servers.rabbitmq import RabbitMQ
from servers.redis import Redis
from servers.webhook_receiver import WebhookReceiver
from tests.conftest import installed
from tests.contracts.rabbitmq_bench import stored_in as queued
from tests.integration.kafka_topics import records_of
from tests.integration.nats_streams import stored_in
from tests.integration.webhook_world import SECRET

MINUTES_AWAY = 600.0
LONGER_THAN_THE_LEASE = 45.0
SOON = 30.0
"""Seconds in which everything has gone out by itself once a broker is back."""


class Way(NamedTuple):
    """A broker that can be taken away and brought back, with its URL and what it has."""

    url: str
    take_away: Callable[[], object]
    bring_back: Callable[[], object]
    has: Callable[[], Iterable[bytes]]
    settings: str = ""


@contextmanager
def redis() -> Iterator[Way]:
    with installed(lambda: Redis("valkey")) as server:

        def has() -> list[bytes]:
            with server.client() as client:
                return [fields[b"body"] for _, fields in client.xrange("orders")]

        yield Way(server.url(), server.kill, server.start, has)


@contextmanager
def nats() -> Iterator[Way]:
    with installed(Nats) as server:
        asyncio.run(make_stream(server.url, "TEST", "orders"))
        yield Way(server.url, server.kill, server.start, lambda: bodies(asyncio.run(stored_in(server.url, "TEST"))))


@contextmanager
def rabbitmq() -> Iterator[Way]:
    with installed(RabbitMQ) as server:
        server.create_vhost("soak")
        server.declare_queue("soak", "orders")
        spend(6)  # a quorum queue that is younger does not survive
        has = partial(queued, server, "soak", "orders")
        yield Way(server.url("soak"), server.kill, server.start, lambda: bodies(has()))


@contextmanager
def kafka() -> Iterator[Way]:
    with installed(Kafka) as server:
        server.create_topic("orders")
        yield Way(
            server.url, server.kill, server.restart, lambda: [r.value() or b"" for r in records_of(server, "orders")]
        )


@contextmanager
def webhooks() -> Iterator[Way]:
    with installed(WebhookReceiver) as server:
        table = f'[webhooks]\nsecrets = ["{SECRET}"]\nallow = ["127.0.0.1"]\n'
        yield Way(server.url, server.kill, server.start, lambda: [one.body for one in server.received()], table)


@contextmanager
def embedded() -> Iterator[Way]:
    with TemporaryDirectory() as folder, ExitStack() as lock:
        file = Path(folder) / "stream.db"

        def has() -> list[bytes]:
            with closing(sqlite3.connect(file)) as stream:
                return [bytes(body) for (body,) in stream.execute("SELECT body FROM messages ORDER BY id")]

        yield Way(f"sqlite:///{file}", lambda: lock.enter_context(locked(file)), lock.close, has)


WAYS = {way.__name__: way for way in (kafka, rabbitmq, redis, nats, webhooks, embedded)}


@pytest.mark.timeout(1500)
def test_brokers_that_are_away_for_ten_minutes_cost_no_attempt_and_come_back_by_themselves(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """All of them at the same time, so that the ten minutes pass once."""
    with ExitStack() as stack:
        shops = {name: shop_at(tmp_path / name, stack.enter_context(way())) for name, way in WAYS.items()}
        for shop in shops.values():
            stack.enter_context(relay(shop.folder, shop.way.url))
            shop.place(range(100))
        until(lambda: all(shop.unpublished() == 0 for shop in shops.values()))
        for shop in shops.values():
            shop.way.take_away()
            shop.place(range(100, 600))
        until(lambda: all(away(shop.folder) for shop in shops.values()))
        spend(MINUTES_AWAY)
        assert {name: shop.unpublished() for name, shop in shops.items()} == dict.fromkeys(shops, 500)
        says = [f"{name} {shop.comes_back():.1f} s" for name, shop in shops.items()]
    record_property("says", f"away for {MINUTES_AWAY:.0f} s, all published after its return: {', '.join(says)}")


class Shop(NamedTuple):
    """An outbox whose relay goes to one of the brokers."""

    folder: Path
    way: Way

    def place(self, numbers: range) -> None:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            place(connection, numbers)

    def unpublished(self) -> int:
        return sum(record.status != "published" for record in self.records())

    def records(self) -> Sequence[Record]:
        async def found() -> Sequence[Record]:
            async with open_admin(Settings(database=f"sqlite:///{self.folder / 'shop.db'}")) as admin:
                return await admin.find(Query(limit=1000))

        return asyncio.run(found())

    def comes_back(self) -> float:
        """Bring the broker back and wait until it has everything; give how many seconds that took."""
        self.way.bring_back()
        began = time.monotonic()
        until(lambda: self.unpublished() == 0)
        took = time.monotonic() - began
        assert took < SOON, f"everything has gone out only {took:.1f} s after the broker was back"
        assert list(dict.fromkeys(map(int, self.way.has()))) == [*range(600)]
        assert {record.attempts for record in self.records()} == {0}
        return took


def shop_at(folder: Path, way: Way) -> Shop:
    folder.mkdir()
    (folder / "pillarbox.toml").write_text(way.settings)
    pillarbox(folder, "migrate", "up")
    return Shop(folder, way)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pillarbox(tmp_path, "migrate", "up")
    return tmp_path


@pytest.mark.timeout(600)
def test_a_database_that_is_locked_longer_than_the_lease_loses_nothing(folder: Path) -> None:
    with (
        relay(folder, f"sqlite:///{folder / 'stream.db'}"),
        closing(sqlite3.connect(folder / "shop.db", timeout=60)) as shop,
    ):
        place(shop, range(100))
        until(lambda: wire(folder) == [*range(100)])
        place(shop, range(100, 2000))
        with locked(folder / "shop.db"):
            spend(LONGER_THAN_THE_LEASE)
        place(shop, range(2000, 2100))
        until(lambda: len(set(wire(folder))) == 2100)
        assert list(dict.fromkeys(wire(folder))) == [*range(2100)]


def pillarbox(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "pillarbox", *words, "--database", f"sqlite:///{folder / 'shop.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def away(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        return bool(shop.execute("SELECT count(*) FROM pillarbox_relays WHERE away_since IS NOT NULL").fetchone()[0])


@contextmanager
def relay(folder: Path, broker: str) -> Iterator[None]:
    words = ["--database", f"sqlite:///{folder / 'shop.db'}", "--broker", broker]
    process = subprocess.Popen([sys.executable, "-m", "pillarbox", "relay", "run", *words], cwd=folder)
    try:
        yield
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep everybody else from writing."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def place(shop: sqlite3.Connection, numbers: range) -> None:
    with shop:
        Outbox(topic="orders").add(shop, *(Event("Placed", n, aggregate=("shop", 1)) for n in numbers))


def wire(folder: Path) -> list[int]:
    if not (folder / "stream.db").is_file():
        return []
    with closing(sqlite3.connect(folder / "stream.db")) as stream:
        try:
            return [int(body) for (body,) in stream.execute("SELECT body FROM messages ORDER BY id")]
        except sqlite3.OperationalError:  # the broker is about to make its tables
            return []


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come; the deadline only ends a test that has failed."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def spend(seconds: float) -> None:
    """Let time pass: the length of the outage is what is tested here."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.2)
