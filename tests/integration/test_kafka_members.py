"""Groups on Kafka: partitions that change hands, a reader that is slow, and a handler whose commit comes first."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from pillarbox import Consumer, Event
from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher, KafkaSubscriber, member, reading
from pillarbox.core.message import Delivery, Message
from pillarbox.dbapi import Inbox
from pillarbox.errors import BrokerUnavailable
from pillarbox.testing.contracts.publisher import answers, batch, bodies
from pillarbox.testing.contracts.subscriber import receive, texts
from pillarbox.testing.contracts.subscriber_bench import is_away
from servers.kafka import Kafka
from tests.conftest import installed
from tests.integration.kafka_topics import Topics
from tests.integration.relay_shop import RelayShop, until, until_true

QUICK = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 200}
MakeMember = Callable[[], KafkaSubscriber]


@pytest.fixture
def topics(kafka: Kafka) -> Topics:
    topics = Topics(kafka)
    topics.make("orders", partitions=4)
    return topics


@pytest.fixture
async def member_of(kafka: Kafka, topics: Topics) -> AsyncIterator[MakeMember]:
    """Opens members of one group."""
    opened: list[KafkaSubscriber] = []

    def make() -> KafkaSubscriber:
        options = KafkaOptions.read(kafka.url.removeprefix("kafka:"), QUICK)
        names = [topics.full("orders")]
        opened.append(KafkaSubscriber(options, consumer=topics.full("billing"), topics=names))
        return opened[-1]

    yield make
    await asyncio.gather(*(one.close() for one in opened))


async def publish(topics: Topics, messages: Sequence[Message]) -> None:
    options = KafkaOptions.read(topics.server.url.removeprefix("kafka:"), {})
    publisher = topics.publisher(KafkaPublisher(options, publish_timeout=timedelta(seconds=20)))
    publisher.send(messages)
    assert all(outcome.error is None for outcome in await answers(publisher, len(messages)))
    await publisher.close()


def committed(topics: Topics) -> dict[int, int]:
    """Ask Kafka where the group is, by partition."""
    admin = topics.server.admin()
    group = topics.full("billing")
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    found: ConsumerGroupTopicPartitions = answer.result(10)
    return {one.partition: one.offset for one in found.topic_partitions or ()}


def of_partition(deliveries: Sequence[Delivery], number: int) -> list[Delivery]:
    return [delivery for delivery in deliveries if delivery.place.partition[1] == number]


async def test_what_kafka_does_not_take_in_the_midst_of_a_rebalance_is_said_again(
    topics: Topics, member_of: MakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the group would seem to lag for as long as nothing else is acknowledged in that partition."""
    commit, refused = member.Member._commit, list[Any]()

    def refusing(self: member.Member, consumer: Any, marks: list[TopicPartition]) -> Any:
        if marks and len(refused) < 2:
            refused.append(marks)
            return commit(self, Rebalancing(), marks)  # type: ignore[arg-type]
        return commit(self, consumer, marks)

    await publish(topics, batch(ascii_letters))
    only = member_of()
    deliveries = await receive(only, len(ascii_letters))
    monkeypatch.setattr(member.Member, "_commit", refusing)
    await only.acknowledge(deliveries)
    assert set(committed(topics).values()) == {0}
    everything = {number: len(of_partition(deliveries, number)) for number in range(4)}
    await until(lambda: committed(topics) == everything)
    assert len(refused) == 2


class Rebalancing:
    """A consumer whose group is in the midst of a rebalance: the coordinator takes no commit, also of what it keeps."""

    def commit(self, **_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))


async def test_nothing_is_committed_for_a_partition_that_was_revoked(
    topics: Topics, member_of: MakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "HANDOVER", 0.3)  # nobody acknowledges in time
    await publish(topics, batch(ascii_letters))
    first, second = member_of(), member_of()
    pending = await receive(first, len(ascii_letters))
    assert set(committed(topics).values()) == {0}
    taken_over: list[Delivery] = []
    async with asyncio.timeout(20):
        while len({delivery.place.partition for delivery in taken_over}) < 2:
            taken_over += await second.deliveries(100, 0.1)
    moved = {delivery.place.partition[1] for delivery in taken_over}
    assert all(delivery.redelivered for delivery in taken_over)
    await first.acknowledge(pending)
    kept = {number: len(of_partition(pending, number)) for number in range(4) if number not in moved}
    assert committed(topics) == dict.fromkeys(moved, 0) | kept, "late acknowledgements count where they are ours only"
    await second.acknowledge(taken_over)
    assert committed(topics) == {number: len(of_partition(pending, number)) for number in range(4)}


async def test_a_partition_changes_hands_as_soon_as_all_of_it_is_acknowledged(
    topics: Topics, member_of: MakeMember
) -> None:
    await publish(topics, batch(ascii_letters))
    first, second = member_of(), member_of()
    pending = await receive(first, len(ascii_letters))
    assert not await second.deliveries(100, 1.0)
    await first.acknowledge(pending)
    await publish(topics, batch(ascii_letters, first=1000))
    async with asyncio.timeout(20):
        while not (found := await second.deliveries(100, 0.1)):
            await first.acknowledge(await first.deliveries(100, 0.01))
    assert not any(delivery.redelivered for delivery in found)


async def test_a_slow_reader_keeps_memory_in_bounds_and_loses_nothing(topics: Topics, member_of: MakeMember) -> None:
    messages = batch("abcd" * 750, padding=10_000)
    for start in range(0, len(messages), 1000):
        await publish(topics, messages[start : start + 1000])
    slow = member_of()
    received = await receive(slow, 10)
    await until(lambda: slow._member._reading.paused, 20)
    assert slow._member._reading._bytes < reading.MOST_BYTES + 101 * 10_100
    await slow.acknowledge(received)
    async with asyncio.timeout(40):
        while len(received) < len(messages):
            more = await slow.deliveries(500, 1.0)
            await slow.acknowledge(more)
            received += more
    for key in "abcd":
        assert texts(received, key) == bodies(messages, key)


async def test_a_topic_that_is_not_there_is_missed_once_and_found_when_it_comes(
    kafka: Kafka, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    options = KafkaOptions.read(kafka.url.removeprefix("kafka:"), QUICK | {"topic.metadata.refresh.interval.ms": 200})
    group, late = topics.full("billing"), topics.full("late")
    subscriber = KafkaSubscriber(options, consumer=group, topics=[late])
    try:
        assert not await subscriber.deliveries(10, 3.0)  # it was looked for several times
        (told,) = [record.getMessage() for record in caplog.records if late in record.getMessage()]
        assert "mend its name" in told
        topics.make("late")
        await publish(topics, batch("a", topic="late"))
        assert texts(await receive(subscriber, 1)) == [b"a1"]
    finally:
        await subscriber.close()


async def test_a_member_that_may_not_join_the_group_says_so(kafka: Kafka, topics: Topics) -> None:
    options = KafkaOptions.read(kafka.sasl("nobody").removeprefix("kafka:"), QUICK)
    denied = KafkaSubscriber(options, consumer=topics.full("billing"), topics=[topics.full("orders")])
    with pytest.raises(BrokerUnavailable, match="authorization failed"):
        await denied.deliveries(1, 20)
    await denied.close()


@pytest.mark.soak
async def test_a_member_comes_back_from_an_outage_longer_than_its_session(caplog: pytest.LogCaptureFixture) -> None:
    """Its client takes it for expelled meanwhile, though nobody else has its place."""
    with installed(Kafka) as server:
        topics = Topics(server)
        topics.make("orders")
        options = KafkaOptions.read(server.url.removeprefix("kafka:"), QUICK)
        subscriber = KafkaSubscriber(options, consumer=topics.full("billing"), topics=[topics.full("orders")])
        await publish(topics, batch("a"))
        await subscriber.acknowledge(await receive(subscriber, 1))
        await asyncio.to_thread(server.kill)

        async def is_lost() -> bool:
            return await is_away(subscriber.deliveries(1, 0.1)) and "SESSTMOUT" in caplog.text

        async def is_back() -> bool:
            return not await is_away(subscriber.deliveries(0, 0.1))

        await until_true(is_lost, 30)
        await asyncio.to_thread(server.restart)
        await publish(topics, batch("a", first=2))
        await until_true(is_back, 30)
        assert texts(await receive(subscriber, 1)) == [b"a2"]
        await subscriber.close()


async def test_an_event_goes_from_an_outbox_through_kafka_into_an_inbox_once(
    kafka: Kafka, topics: Topics, tmp_path: Path
) -> None:
    shop = RelayShop(tmp_path / "shop.db")
    await shop.open()
    orders = topics.full("orders")
    shop.add(500, topic=orders)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE handled (aggregate TEXT, n INTEGER)")
    inbox = Inbox(topics.full("billing"), lambda: sqlite3.connect(tmp_path / "shop.db"))

    @inbox.handler("Placed")
    def handle(connection: sqlite3.Connection, event: Event[dict[str, int]]) -> None:
        assert event.aggregate is not None
        connection.execute("INSERT INTO handled VALUES (?, ?)", (event.aggregate[1], event.payload["n"]))

    async with shop.relay(kafka.url):
        await shop.until_all_published()
    for _ in range(2):
        await Consumer(inbox, broker=kafka.url, topics=[orders]).run_once(patience=4)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        rows = connection.execute("SELECT aggregate, n FROM handled ORDER BY rowid").fetchall()
    assert len(rows) == len(set(rows)) == 500
    for aggregate in {row[0] for row in rows}:
        numbers = [n for name, n in rows if name == aggregate]
        assert numbers == sorted(numbers)
