"""A relay to a real Kafka that is killed, cut off and refuses: nothing lost, order kept, nothing tried for nothing."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillarbox.telemetry.hooks import Moment
from servers.kafka import Kafka
from tests.integration.kafka_shop import AGGREGATES, TRIED, KafkaShop, check_arrived, until
from tests.integration.kafka_topics import Topics, ends_of


@pytest.fixture
async def shop(tmp_path: Path) -> KafkaShop:
    shop = KafkaShop(tmp_path / "shop.db")
    await shop.open()
    return shop


@pytest.fixture
def topics(kafka: Kafka) -> Iterator[Topics]:
    topics = Topics(kafka)
    topics.make("orders", partitions=3)
    yield topics
    kafka.proxies[0].heal()


async def test_acknowledgements_that_are_lost_lose_no_event_and_no_order(
    kafka: Kafka, topics: Topics, shop: KafkaShop
) -> None:
    orders, proxy = topics.full("orders"), kafka.proxies[0]
    shop.add(300, topic=orders)
    async with shop.relay(kafka.proxied()):
        await shop.until_all_published()
        proxy.lose_answers()
        shop.add(700, start=300, topic=orders)
        await until(lambda: ends_of(kafka, orders) >= 400)
        await until(lambda: Moment.BROKER_AWAY in shop.heard)
        proxy.heal()
        await shop.until_all_published()
    copies = check_arrived(kafka, orders, 1000)
    assert 0 < copies <= 400, "a batch is 100, the window two of them, and the answers may get lost twice"
    assert not TRIED & set(shop.heard)


@pytest.mark.soak
async def test_a_broker_that_is_killed_three_times_in_mid_batch_loses_nothing(shop: KafkaShop) -> None:
    with Kafka() as server:
        server.create_topic("orders", 3)
        proxy = server.proxies[0]
        proxy.slow(100_000)  # slow enough to be killed in the middle
        shop.add(2000)
        before = memory()
        async with shop.relay(server.proxied()):
            for goal in (200, 700, 1200):
                await until(lambda goal=goal: ends_of(server, "orders") >= goal)  # type: ignore[misc]
                server.kill()
                await until(lambda: shop.heard.count(Moment.BROKER_AWAY) > shop.heard.count(Moment.BROKER_BACK))
                server.begin()
                await until(server.answers)
            proxy.heal()
            await shop.until_all_published()
        grown = memory() - before
        check_arrived(server, "orders", 2000)
    assert not TRIED & set(shop.heard)
    assert grown < 32 << 20


def memory() -> int:
    """Give how many bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_broker_that_is_away_for_ten_seconds_costs_no_attempt(
    kafka: Kafka, topics: Topics, shop: KafkaShop
) -> None:
    orders, proxy = topics.full("orders"), kafka.proxies[0]
    async with shop.relay(kafka.proxied()):
        shop.add(50, topic=orders)
        await shop.until_all_published()
        proxy.reset()
        shop.add(50, start=50, topic=orders)
        await until(lambda: Moment.BROKER_AWAY in shop.heard)
        await asyncio.sleep(10)
        proxy.heal()
        await shop.until_all_published(10)
    assert check_arrived(kafka, orders, 100) <= 50
    assert not TRIED & set(shop.heard)


async def test_an_event_that_the_broker_refuses_holds_back_its_own_followers_only(
    kafka: Kafka, shop: KafkaShop
) -> None:
    topics = Topics(kafka)
    topics.make("orders", partitions=3, config={"max.message.bytes": "5000"})
    orders = topics.full("orders")
    shop.add(AGGREGATES, topic=orders)
    shop.add(1, start=AGGREGATES, padding=10_000, topic=orders)  # of aggregate 0
    shop.add(2 * AGGREGATES - 1, start=AGGREGATES + 1, topic=orders)
    async with shop.relay(kafka.url):
        await until(lambda: ends_of(kafka, orders) == 3 * AGGREGATES - 2)
        await until(lambda: Moment.EVENT_DEAD in shop.heard)
    (dead,) = await shop.records("dead")
    assert dead.attempts <= 1
    assert "Broker: Message size too large" in (dead.last_error or "")
    assert [record.aggregate for record in await shop.records("blocked")] == [("order", "0")]
    assert check_arrived(kafka, orders, 3 * AGGREGATES - 2) == 0


async def test_an_unknown_topic_is_dead_in_one_attempt_and_the_others_flow(
    kafka: Kafka, topics: Topics, shop: KafkaShop
) -> None:
    shop.add(1, topic=topics.full("nowhere"))
    shop.add(AGGREGATES, topic=topics.full("orders"))
    async with shop.relay(kafka.url):
        await until(lambda: ends_of(kafka, topics.full("orders")) == AGGREGATES)
        await until(lambda: Moment.EVENT_DEAD in shop.heard)
    (dead,) = await shop.records("dead")
    assert dead.attempts <= 1
    assert "Broker: Unknown topic or partition" in (dead.last_error or "")
