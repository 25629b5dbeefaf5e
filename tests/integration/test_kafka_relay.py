"""A relay to a Kafka that refuses of its own accord: what the suite of relays does not ask."""

from pathlib import Path

import pytest

from pillarbox.telemetry.hooks import Moment
from servers.kafka import Kafka
from tests.integration.kafka_topics import Topics, check_arrived, ends_of
from tests.integration.relay_shop import AGGREGATES, RelayShop, until


@pytest.fixture
async def shop(tmp_path: Path) -> RelayShop:
    shop = RelayShop(tmp_path / "shop.db")
    await shop.open()
    return shop


@pytest.fixture
def topics(kafka: Kafka) -> Topics:
    topics = Topics(kafka)
    topics.make("orders", partitions=3)
    return topics


async def test_an_event_that_the_broker_refuses_holds_back_its_own_followers_only(
    kafka: Kafka, shop: RelayShop
) -> None:
    topics = Topics(kafka)
    topics.make("orders", partitions=3, config={"max.message.bytes": "5000"})
    orders = topics.full("orders")
    shop.add(AGGREGATES, topic=orders)
    shop.add(1, start=AGGREGATES, padding=10_000, topic=orders)  # of aggregate 0
    shop.add(2 * AGGREGATES - 1, start=AGGREGATES + 1, topic=orders)
    async with shop.relay(kafka.url):
        await until(lambda: ends_of(kafka, orders) == 3 * AGGREGATES - 2)
        await shop.until_heard(Moment.EVENT_DEAD)
    (dead,) = await shop.records("dead")
    assert dead.attempts == 1
    assert "Broker: Message size too large" in (dead.last_error or "")
    assert [record.aggregate for record in await shop.records("blocked")] == [("order", "0")]
    assert check_arrived(kafka, orders, 3 * AGGREGATES - 2) == 0


async def test_an_unknown_topic_is_dead_in_one_attempt_and_the_others_flow(
    kafka: Kafka, topics: Topics, shop: RelayShop
) -> None:
    shop.add(1, topic=topics.full("nowhere"))
    shop.add(AGGREGATES, topic=topics.full("orders"))
    async with shop.relay(kafka.url):
        await until(lambda: ends_of(kafka, topics.full("orders")) == AGGREGATES)
        await shop.until_heard(Moment.EVENT_DEAD)
    (dead,) = await shop.records("dead")
    assert dead.attempts == 1
    assert "Broker: Unknown topic or partition" in (dead.last_error or "")
