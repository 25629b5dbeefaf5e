"""Wiring: which settings make which parts, and which are refused, as soon as a thing is built."""

import os
import sqlite3
import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pillarbox import ConfigError, Consumer, Event, MissingExtra, Relay, Settings
from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.message import Message
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.settings import InboxSettings, RelaySettings
from pillarbox.settings.brokers import BROKERS
from pillarbox.wiring import SystemClock, open_admin

DATABASE = "sqlite:///shop.db"
INBOX = Inbox("billing", lambda: sqlite3.connect("billing.db"))


@INBOX.handler("OrderPlaced")
def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
    connection.execute("INSERT INTO invoices VALUES (?)", [event.payload["total"]])


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with one event, in the current directory."""
    monkeypatch.chdir(tmp_path)
    async with open_admin(Settings(database=DATABASE)) as admin:
        await admin.migrate()
    connection = sqlite3.connect("shop.db")
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        Outbox().add(connection, Event("OrderPlaced", {"total": 42}, aggregate=("order", 7)))
    connection.close()
    return tmp_path


@pytest.mark.parametrize("url", ["sqlite:///stream.db", "sqlite+pysqlite:///stream.db", "stdout:", "memory:"])
async def test_every_known_broker_takes_events(shop: Path, url: str) -> None:
    assert await Relay(database=DATABASE, broker=url).run_once() == 1


async def test_settings_name_the_parts_and_arguments_win(shop: Path) -> None:
    settings = Settings(database="sqlite:///missing.db", broker="stdout:")
    assert await Relay(settings, database=f"sqlite:///{shop / 'shop.db'}", broker="sqlite:///stream.db").run_once() == 1
    assert (shop / "stream.db").exists()


async def test_a_function_is_a_way_out(shop: Path) -> None:
    seen: list[Message] = []
    assert await Relay(Settings(database=DATABASE, broker="stdout:"), publish=seen.extend).run_once() == 1
    assert [message.key for message in seen] == ["7"]


async def test_a_broker_may_be_an_object(shop: Path) -> None:
    broker = MemoryBroker()
    await Relay(database=DATABASE, broker=broker).run_once()
    assert [message.key for message in broker.messages()] == ["7"]


@pytest.mark.parametrize("as_object", [True, False])
async def test_relay_and_consumer_meet_in_the_memory_broker(shop: Path, as_object: bool) -> None:
    broker = MemoryBroker() if as_object else f"memory:{shop}"
    async with open_admin(Settings(database="sqlite:///billing.db")) as admin:
        await admin.migrate()
    connection = sqlite3.connect("billing.db")
    connection.execute("CREATE TABLE invoices (total)")
    await Relay(database=DATABASE, broker=broker).run_once()
    assert await Consumer(INBOX, broker=broker, topics=["order-events"]).run_once() == 1
    assert connection.execute("SELECT total FROM invoices").fetchall() == [(42,)]
    connection.close()


def test_a_relay_whose_lease_may_run_out_while_it_publishes_is_refused_at_once() -> None:
    settings = Settings(relay=RelaySettings(lease=timedelta(seconds=10)))
    with pytest.raises(ConfigError, match=r"^relay\.publish_timeout: 10 s must be below relay\.lease, which is 10 s: "):
        Relay(settings, database=DATABASE, broker="stdout:")


def test_no_database_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^database: is not set: give --database"):
        Relay(broker="stdout:")


def test_no_broker_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^broker: is not set: give --broker"):
        Relay(database=DATABASE)


def test_a_broker_and_a_function_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match=r"^publish, broker: give one of them"):
        Relay(database=DATABASE, broker="stdout:", publish=print)


@pytest.mark.parametrize("url", ["oracle://localhost/shop", "mysql://localhost/shop"])
def test_an_unknown_database_names_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is of no known kind; known are sqlite, postgresql$"):
        Relay(database=url, broker="stdout:")


def test_an_unknown_broker_names_the_known_ones_and_no_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        Relay(database=DATABASE, broker="pulsar://:hunter2@localhost")
    assert str(caught.value) == (
        "broker: 'pulsar://:***@localhost' is of no known kind; known are sqlite, kafka, rabbitmq, amqp, amqps, redis,"
        " rediss, nats, tls, https, http, stdout"
    )


def test_nobody_consumes_from_stdout() -> None:
    with pytest.raises(ConfigError, match=r"^broker: 'stdout:' is nothing that Pillarbox consumes from: .* stdout$"):
        Consumer(INBOX, broker="stdout:", topics=["order-events"])


@pytest.mark.parametrize("module", BROKERS)
def test_every_broker_is_opened_by_its_module(module: str) -> None:
    assert callable(import_module(f"pillarbox.brokers.{module}").open_publisher)


def test_what_is_no_inbox_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^inbox: 5 is no Inbox of a door, such as pillarbox\.sqlalchemy$"):
        Consumer(5, broker="sqlite:///stream.db", topics=["order-events"])


@pytest.mark.parametrize("topics", [[], "order-events"])
def test_topics_are_a_list_of_at_least_one(topics: Any) -> None:
    with pytest.raises(ConfigError, match="is no list of topics"):
        Consumer(INBOX, broker="sqlite:///stream.db", topics=topics)


async def test_every_relay_has_a_name_of_its_own(shop: Path) -> None:
    names = []
    for _ in range(2):
        await Relay(database=DATABASE, broker="stdout:").run_once()
        names += await _owners()
    assert len(set(names)) == 2
    assert all(f"-{os.getpid()}-" in name for name in names)


async def _owners() -> list[str]:
    async with open_admin(Settings(database=DATABASE)) as admin:
        return [relay.owner for relay in (await admin.stats()).relays]


def test_the_clock_is_aware_and_in_utc() -> None:
    assert SystemClock().now().utcoffset() is not None


async def test_a_user_without_a_name_is_named_by_number(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    async with open_admin(Settings(database=DATABASE)) as admin:
        await admin.pause("order-events", "stock-taking")
        (pause,) = (await admin.stats()).pauses
    assert pause.who.startswith(f"uid {os.getuid()}@")


def hinted(url: str) -> Settings:
    return Settings(broker="memory:", inbox=InboxSettings(hint=url))


def test_a_hint_is_refused_for_an_inbox_in_a_file() -> None:
    with pytest.raises(ConfigError, match=r"inbox\.hint: this inbox is in a SQLite file, where a look-up costs less"):
        Consumer(INBOX, topics=["order-events"], settings=hinted("redis://localhost"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("kafka://shop:hunter2@localhost", "inbox.hint: must be the URL of a Redis"),
        ("shop:hunter2@localhost", "inbox.hint: must be the URL of a Redis"),
        ("//shop:hunter2@localhost", "inbox.hint: what was given is not a URL"),
        ("redis://shop:hunter2/x@localhost", "inbox.hint: an @ stands behind a /"),
        ("redis://:hunter2@localhost:port", "inbox.hint: a host in its URL is none"),
        ("redis://:hunter2@localhost/shop", "inbox.hint: after the host of a redis URL stands the number"),
        ("redis://:hunter2@localhost?ssl_ca_certs=x", "inbox.hint: redis.ssl_ca_certs: TLS is used with a rediss://"),
        ("redis://:hunter2@localhost?durable=yes", "inbox.hint: durable is an option of the broker"),
    ],
)
def test_a_hint_that_is_no_redis_is_refused_and_its_secret_is_not_said(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Consumer(INBOX, topics=["order-events"], settings=hinted(url))
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_hint_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pillarbox.brokers.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"inbox\.hint needs the extra 'redis': pip install 'pillarbox\[redis\]'"):
        Consumer(INBOX, topics=["order-events"], settings=hinted("redis://localhost"))


@pytest.mark.parametrize(
    ("database", "broker", "library", "ours", "line"),
    [
        (
            DATABASE,
            "kafka://localhost",
            "confluent_kafka",
            "brokers.kafka",
            "a kafka:// broker needs the extra 'kafka'",
        ),
        (DATABASE, "rabbitmq://localhost", "aiormq", "brokers.rabbitmq", "RabbitMQ needs the extra 'rabbitmq'"),
        (DATABASE, "redis://localhost", "redis", "brokers.redis", "a redis:// broker needs the extra 'redis'"),
        (DATABASE, "redis://localhost", "hiredis", "brokers.redis", "a redis:// broker needs the extra 'redis'"),
        (DATABASE, "nats://localhost", "nats", "brokers.nats", "a NATS broker needs the extra 'nats'"),
        (DATABASE, "https://localhost", "httpx", "brokers.webhook", "an HTTPS broker needs the extra 'webhooks'"),
        (
            "postgresql://localhost/shop",
            "stdout:",
            "psycopg",
            "stores.postgres",
            "a postgresql:// database needs the extra 'postgres'",
        ),
    ],
)
def test_without_its_library_a_relay_says_at_once_what_to_install(
    monkeypatch: pytest.MonkeyPatch, database: str, broker: str, library: str, ours: str, line: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"pillarbox.{ours}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra) as caught:
        Relay(database=database, broker=broker)
    assert str(caught.value) == f"{line}: pip install 'pillarbox[{caught.value.extra}]'"
    assert line.endswith(f"'{caught.value.extra}'")
