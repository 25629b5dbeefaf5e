"""Debezium on the same table: consumers do not notice who carried an event, and what it cannot carry it refuses."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message as Record

from pillarbox import Consumer, Event, Settings
from pillarbox.brokers.kafka.partition import message_of
from pillarbox.core.message import PACKED_HEADERS, Delivery, decode
from pillarbox.core.payload import JSON
from pillarbox.dbapi import Inbox
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import open_admin
from servers.kafka import Kafka
from servers.kafka_connect import KafkaConnect
from servers.postgres import Postgres, RunningPostgres
from servers.process import free_port
from servers.webhook_receiver import WebhookReceiver
from tests.conftest import skip_unless_ours
from tests.integration.debezium_shop import DebeziumShop, headers_of, order_events, seen, until
from tests.integration.kafka_topics import Topics

OWN = {"tenant", "traceparent", "tracestate", "leer"}


@pytest.fixture
def shop(postgres: RunningPostgres, migrated: str, kafka: Kafka, kafka_connect: KafkaConnect) -> Iterator[DebeziumShop]:
    skip_unless_ours()
    shop = DebeziumShop(postgres, migrated, kafka_connect, Topics(kafka))
    shop.prepare()
    yield shop
    shop.close()


def split(records: list[Record], first: dict[int, int]) -> tuple[list[Record], list[Record]]:
    """Tell what stood in each partition before from what has come since."""
    before = [record for record in records if (record.offset() or 0) < first.get(record.partition() or 0, 0)]
    return before, [record for record in records if record not in before]


def counts(records: list[Record]) -> dict[int, int]:
    return {record.partition() or 0: (record.offset() or 0) + 1 for record in records}


def events_of(records: list[Record]) -> dict[str, Event[Any]]:
    events = [decode(Delivery(message_of(record))) for record in records]
    return {str(event.id): event for event in events}


async def by_both(shop: DebeziumShop, count: int, *options: str) -> tuple[list[Record], list[Record]]:
    """Let the relay carry the events first, and then Debezium."""
    await shop.relay()
    relayed = shop.until_arrived(count)
    shop.register(*options)
    return split(shop.until_arrived(2 * count), counts(relayed))


async def test_the_same_thousand_events_through_both_are_the_same_records(shop: DebeziumShop) -> None:
    events = order_events(1000)
    for start in range(0, 1000, 50):
        shop.add(*events[start : start + 50])
    relayed, carried = await by_both(shop, 1000)
    assert len(relayed) == len(carried) == 1000

    def fixed(records: list[Record]) -> list[tuple[Any, ...]]:
        """What is seen but for the event's own headers, in the order of each partition."""
        return [
            (*whole, {name: value for name, value in headers.items() if name not in OWN | {PACKED_HEADERS}})
            for *whole, headers in map(seen, records)
        ]

    assert fixed(carried) == fixed(relayed)
    assert {name for record in carried for name in headers_of(record)} >= {"number", "idempotency_key", "occurred_at"}
    assert not any(OWN & headers_of(record).keys() for record in carried)
    assert events_of(carried) == events_of(relayed)
    assert any(event.headers for event in events_of(carried).values())


async def test_what_other_languages_wrote_arrives_byte_for_byte(shop: DebeziumShop) -> None:
    payloads = ['{"b":1,  "a":2}', '[1.0, 1e5,\t"\\u00e9é"]', "null", ' {"a": 1, "a": 2} ', '""']
    with psycopg.connect(shop.url) as connection:
        for payload in payloads:
            connection.execute(
                "INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload, headers)"
                " VALUES (%s, 'order', '7', 'Odd', %s, %s)",
                (shop.topic, payload, '{"n": 5,  "id": "forged", "yes": true}'),
            )
    relayed, carried = await by_both(shop, len(payloads))
    assert [record.value() for record in carried] == [record.value() for record in relayed]
    assert [record.value() for record in carried] == [payload.encode() for payload in payloads]
    assert events_of(carried) == events_of(relayed)
    # The relay names what was left open; both mean the same.
    assert {"content_type"} == headers_of(relayed[0]).keys() - headers_of(carried[0]).keys() - {"n", "yes"}


async def test_an_event_without_an_aggregate_is_the_same_event(shop: DebeziumShop) -> None:
    shop.add(*(Event("Ping", {"n": n}, headers={"tenant": "acme"}) for n in range(10)))
    relayed, carried = await by_both(shop, 10)
    assert {record.key() for record in relayed} == {None}
    assert {record.key() for record in carried} == {b""}, "a limit that the guide names"
    assert events_of(carried) == events_of(relayed)


async def test_with_payload_body_the_same_bytes_arrive(shop: DebeziumShop) -> None:
    bodies = [b"", b"\0\xff\x10", bytes(range(256)), "Zoë".encode(), b"x" * (256 << 10), b"null"]
    shop.add(
        *(
            Event("Scanned", body, aggregate=("parcel", n), content_type="application/octet-stream", headers={"a": "b"})
            for n, body in enumerate(bodies)
        )
    )
    # By hand, what the command prints.
    document = json.loads(shop.quickly("--payload", "body"))
    await shop.relay()
    relayed = shop.until_arrived(len(bodies))
    shop.connect.ask("POST", "connectors", document)
    relayed, carried = split(shop.until_arrived(2 * len(bodies)), counts(relayed))
    assert sorted(record.value() or b"" for record in carried) == sorted(bodies)
    assert [seen(record)[:3] for record in carried] == [seen(record)[:3] for record in relayed]
    assert events_of(carried) == events_of(relayed)


@pytest.mark.parametrize("kind", ["json", "body"])
def test_a_row_of_the_other_kind_stops_the_connector_loudly_and_loses_nothing(shop: DebeziumShop, kind: str) -> None:
    def placed(n: int, of: str) -> Event[Any]:
        payload, type = ({"n": n}, None) if of == "json" else (f"{n}".encode(), "text/plain")
        return Event("OrderPlaced", payload, aggregate=("order", 7), content_type=type)

    other = "body" if kind == "json" else "json"
    shop.register("--payload", kind)
    shop.add(*(placed(n, kind) for n in range(3)), placed(3, other), *(placed(n, kind) for n in range(4, 7)))
    trace = shop.connect.until(shop.name, "FAILED")
    has, lacks = ("body", "payload") if kind == "json" else ("payload", "body")
    assert f"value (7) does not match pattern ('a row of public.pillarbox_outbox has no {lacks} but a {has}" in trace
    assert shop.count() == 3

    again = shop.pillarbox("--register", shop.connect.url, "--payload", kind, "--wait", "60")  # until it fails
    assert again.returncode == 3
    assert f"has no {lacks} but a {has}, and this connector carries {lacks} alone" in again.stderr
    assert shop.count() == 3

    # The way out: by the other kind over that row, and back.
    shop.pillarbox("--register", shop.connect.url, "--payload", other, "--wait", "0")
    until(lambda: shop.count() >= 4)
    shop.connect.until(shop.name, "FAILED")
    shop.register("--payload", kind)
    records = shop.until_arrived(7)
    events = events_of(records).values()
    assert [event.payload["n"] if event.content_type == JSON else int(event.payload) for event in events] == [*range(7)]


async def test_an_event_is_applied_once_whoever_carried_it(shop: DebeziumShop, tmp_path: Path) -> None:
    books = tmp_path / "billing.db"
    async with open_admin(Settings(database=f"sqlite:///{books}")) as admin:
        await admin.migrate()
    with closing(sqlite3.connect(books)) as connection, connection:
        connection.execute("CREATE TABLE billed (event TEXT, tenant TEXT)")
    inbox = Inbox(shop.topics.full("billing"), lambda: sqlite3.connect(books))

    @inbox.handler("OrderPlaced")
    def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO billed VALUES (?, ?)", (str(event.id), event.headers["tenant"]))

    def place(count: int) -> list[Event[Any]]:
        events = [
            Event("OrderPlaced", {"n": n}, aggregate=("order", n % 5), headers={"tenant": "acme"}) for n in range(count)
        ]
        shop.add(*events)
        return events

    acknowledged: list[Any] = []
    everything = asyncio.Event()

    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.ACKNOWLEDGED:
            acknowledged.append(facts["count"])
            if sum(acknowledged) >= 80:
                everything.set()

    first = place(20)  # by the relay, then by Debezium
    await shop.relay()
    shop.register()
    shop.until_arrived(40)
    second = place(20)  # the other way round
    shop.until_arrived(60)
    await shop.relay()
    shop.until_arrived(80)
    async with (
        Consumer(inbox, broker=shop.topics.server.url, topics=[shop.topic], hooks=Hooks(hear)),
        asyncio.timeout(60),
    ):
        await everything.wait()
    with closing(sqlite3.connect(books)) as connection:
        billed = connection.execute("SELECT event, tenant FROM billed").fetchall()
    assert sorted(billed) == sorted((str(event.id), "acme") for event in first + second)


def test_registering_again_updates_the_connector(shop: DebeziumShop) -> None:
    assert shop.register() == {"name": shop.name, "created": True, "state": "RUNNING", "error": None}
    again = shop.register("--option", "poll.interval.ms=5")
    assert again == {"name": shop.name, "created": False, "state": "RUNNING", "error": None}
    assert shop.connect.ask("GET", "connectors") == [shop.name]
    assert shop.connect.ask("GET", f"connectors/{shop.name}/config")["poll.interval.ms"] == "5"
    shop.add(Event("OrderPlaced", {}, aggregate=("order", 7)))
    shop.until_arrived(1)


@pytest.mark.parametrize("kind", ["json", "body"])
def test_with_a_heartbeat_the_slot_moves_on_while_only_others_write(shop: DebeziumShop, kind: str) -> None:
    shop.topics.server.create_topic(f"__debezium-heartbeat.{shop.name}")
    shop.register("--heartbeat", "1", "--payload", kind)
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE busy AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
        connection.execute("SELECT pg_logical_emit_message(true, 'shop', 'no event')")
        ((end,),) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    until(lambda: shop.has_confirmed(end))
    shop.add(Event("OrderPlaced", b"{}", aggregate=("order", 7), content_type=JSON if kind == "json" else "text/plain"))
    shop.until_arrived(1)


@pytest.mark.soak
def test_nothing_is_lost_and_order_is_kept_when_the_worker_is_killed(
    postgres: RunningPostgres, migrated: str, kafka: Kafka
) -> None:
    skip_unless_ours()
    with KafkaConnect(kafka.bootstrap) as connect:
        shop = DebeziumShop(postgres, migrated, connect, Topics(kafka))
        shop.prepare()
        shop.register()
        for start in range(0, 5000, 100):
            shop.add(*(Event("Placed", {"n": start + n}, aggregate=("order", n % 20)) for n in range(100)))
        until(lambda: shop.count() > 100)
        connect.kill()
        connect.restart()
        shop.register()
        until(lambda: len(events_of(shop.until_arrived(5000))) == 5000)
        events = events_of(shop.until_arrived(5000)).values()  # each where its first copy stands
        for order in range(20):
            numbers = [event.payload["n"] for event in events if event.aggregate == ("order", str(order))]
            assert numbers == sorted(numbers)
        shop.close()


def test_a_worker_that_is_away_is_an_error_that_says_so(shop: DebeziumShop) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    done = shop.pillarbox("--register", address)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"pillarbox: Kafka Connect at {address} cannot be reached: [Errno 111] Connection refused" in done.stderr


def test_a_stranger_at_the_address_is_an_error_that_says_so(
    shop: DebeziumShop, webhook_receiver: WebhookReceiver
) -> None:
    done = shop.pillarbox("--register", webhook_receiver.url)
    assert done.returncode == 2
    assert "answers, but not as Kafka Connect does" in done.stderr


def test_what_the_worker_refuses_is_an_error_with_its_words(shop: DebeziumShop) -> None:
    nowhere = shop.debezium_url.rpartition("/")[0] + "/nowhere"
    done = shop.pillarbox("--register", shop.connect.url, url=nowhere)
    assert done.returncode == 2
    assert f"pillarbox: Kafka Connect at {shop.connect.url} refuses: Connector configuration is invalid" in done.stderr
    assert 'database "nowhere" does not exist' in done.stderr
    assert "nowhere_pillarbox_outbox" not in shop.connect.ask("GET", "connectors")


def test_a_connector_without_its_publication_fails_with_exit_code_3(shop: DebeziumShop) -> None:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute(f"DROP PUBLICATION {shop.name}".encode())
    done = shop.pillarbox("--register", shop.connect.url)
    assert (done.returncode, shop.connect.state_of(shop.name)[0]) == (3, "FAILED")
    assert done.stdout == f"registered {shop.name} at {shop.connect.url}; it is FAILED\n"
    assert "Publication autocreation is disabled, please create one" in done.stderr


def test_the_worker_puts_the_password_in(shop: DebeziumShop, postgres: RunningPostgres) -> None:
    assert isinstance(postgres, Postgres)
    rules = postgres.data / "pg_hba.conf"
    trusting = rules.read_text()
    rules.write_text(f"host all {shop.user} all scram-sha-256\n{trusting}")
    try:
        postgres.execute("SELECT pg_reload_conf()")
        login = shop.debezium_url.replace(f"{shop.user}@", f"{shop.user}:wrong@")
        placed = shop.pillarbox("--register", shop.connect.url, "--wait", "0", "--json", url=login)
        assert json.loads(placed.stdout)["state"] == "RUNNING", placed.stderr
        written = shop.pillarbox("--register", shop.connect.url, "--with-password", url=login)
        assert written.returncode == 2
        assert "password authentication failed" in written.stderr
        assert "wrong" not in written.stderr
        other = shop.pillarbox("--register", shop.connect.url, "--password-from", "${env:NOT_THERE}", url=login)
        assert other.returncode == 2
    finally:
        rules.write_text(trusting)
        postgres.execute("SELECT pg_reload_conf()")
