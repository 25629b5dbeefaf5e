"""Debezium itself carries the events: what it has confirmed is published and may be deleted, and nothing else is."""

from collections.abc import Iterator

import pytest

from pillarbox import Event, Settings
from pillarbox.wiring import open_source
from servers.kafka import Kafka
from servers.kafka_connect import KafkaConnect
from servers.postgres import RunningPostgres
from tests.conftest import skip_unless_ours
from tests.integration.debezium_shop import DebeziumShop, until
from tests.integration.kafka_topics import Topics
from tests.integration.postgres_world import run


@pytest.fixture
def shop(postgres: RunningPostgres, migrated: str, kafka: Kafka, kafka_connect: KafkaConnect) -> Iterator[DebeziumShop]:
    skip_unless_ours()
    shop = DebeziumShop(postgres, migrated, kafka_connect, Topics(kafka))
    shop.prepare()
    kafka.create_topic(f"__debezium-heartbeat.{shop.name}", 1)
    run(shop.url, "CREATE TABLE elsewhere (n int)")
    yield shop
    shop.close()
    until(lambda: not run(shop.url, f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{shop.name}' AND active"))
    run(shop.url, f"SELECT pg_drop_replication_slot('{shop.name}')")


def add(shop: DebeziumShop, count: int) -> None:
    for _ in range(count):
        shop.add(Event("OrderPlaced", {}, aggregate=("order", 1)))


def look(shop: DebeziumShop) -> None:
    """Look at the slot once, while other tables are busy; it must be the one that it was."""
    run(shop.url, "INSERT INTO elsewhere VALUES (1)")
    assert run(shop.url, "SELECT slot_name, doubted FROM pillarbox_watch()") == [(shop.name, None)]


def published(shop: DebeziumShop) -> int:
    look(shop)
    [[count]] = run(shop.url, "SELECT count(*) FROM pillarbox_events WHERE status = 'published'")
    return int(count)


async def test_what_debezium_has_confirmed_is_published_and_deleted_and_nothing_else(shop: DebeziumShop) -> None:
    settings = Settings.load(environment={"PILLARBOX_RETENTION_PUBLISHED": "none"}, flags={"database": shop.url})
    async with open_source(settings) as admin:
        await admin.watch_slot(shop.name)
    add(shop, 20)
    look(shop)
    assert published(shop) == 0
    shop.register("--heartbeat", "1")
    until(lambda: published(shop) == 20)
    assert shop.count() == 20
    shop.connect.delete(shop.name)
    add(shop, 5)
    assert published(shop) == 20
    pruned = "SELECT pillarbox_prune('0', '0', NULL, 1000, 1000)"
    run(shop.url, pruned)
    assert run(shop.url, "SELECT count(*) FROM pillarbox_outbox") == [(5,)]
    shop.register("--heartbeat", "1")  # a new reader, of the same slot
    until(lambda: published(shop) == 5)
    assert shop.count() >= 25
    run(shop.url, pruned)
    assert run(shop.url, "SELECT count(*) FROM pillarbox_outbox") == [(0,)]
