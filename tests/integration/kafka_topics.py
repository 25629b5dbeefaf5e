"""Topics of one test on a Kafka that others share: names get a prefix, which nobody sees."""

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as Record

from pillarbox.brokers.kafka import KafkaPublisher, KafkaSubscriber
from pillarbox.brokers.kafka.partition import message_of
from pillarbox.core.message import Delivery, Message
from pillarbox.ports import Outcome
from servers.kafka import Kafka, quiet


class Topics:
    """The topics of one test."""

    def __init__(self, server: Kafka) -> None:
        self.server = server
        self.prefix = f"{uuid.uuid4().hex[:8]}-"
        self._made: list[str] = []

    def make(self, *names: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        for name in names:
            self.server.create_topic(self.full(name), partitions, config=config)
            self._made.append(name)

    def full(self, name: str) -> str:
        return self.prefix + name

    def records(self, *names: str) -> list[Record]:
        """Read all records of topics, by the time at which the producer made them."""
        found: list[Record] = []
        for name in names or self._made:
            found += records_of(self.server, self.full(name))
        return sorted(found, key=lambda record: (record.timestamp()[1], record.partition() or 0, record.offset() or 0))

    def stored(self, *names: str) -> list[Message]:
        """Read all messages of topics, in their order."""
        return [self.seen(message_of(record)) for record in self.records(*names)]

    def seen(self, message: Message) -> Message:
        return message._replace(topic=message.topic.removeprefix(self.prefix))

    def sent(self, message: Message) -> Message:
        return message._replace(topic=self.full(message.topic))

    def publisher(self, publisher: KafkaPublisher) -> "Publisher":
        return Publisher(publisher, self)

    def subscriber(self, subscriber: KafkaSubscriber) -> "Subscriber":
        return Subscriber(subscriber, self)


class Publisher:
    """A publisher to the topics of one test."""

    def __init__(self, publisher: KafkaPublisher, topics: Topics) -> None:
        self.kafka, self._topics = publisher, topics

    @property
    def prefix_safe(self) -> bool:
        return self.kafka.prefix_safe

    def send(self, messages: Sequence[Message]) -> None:
        self.kafka.send([self._topics.sent(message) for message in messages])

    async def outcomes(self) -> Sequence[Outcome]:
        return await self.kafka.outcomes()

    async def close(self) -> None:
        await self.kafka.close()


class Subscriber:
    """A subscriber to the topics of one test."""

    def __init__(self, subscriber: KafkaSubscriber, topics: Topics) -> None:
        self.kafka, self._topics = subscriber, topics

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        found = await self.kafka.deliveries(room, patience)
        return [replace(delivery, message=self._topics.seen(delivery.message)) for delivery in found]

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        await self.kafka.acknowledge(deliveries)

    async def close(self) -> None:
        await self.kafka.close()


def records_of(server: Kafka, topic: str) -> list[Record]:
    """Read all records of a topic, partition by partition, without any group."""
    reader = reader_of(server)
    try:
        partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {number: end(reader, topic, number) for number in partitions}
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found: list[Record] = []
        while any(ends.values()):
            for record in reader.consume(1000, 0.1):
                assert record.error() is None
                found.append(record)
            for number, stop in ends.items():
                place = reader.position([TopicPartition(topic, number)])[0].offset
                ends[number] = 0 if place >= stop else stop
        return sorted(found, key=lambda record: (record.partition() or 0, record.offset() or 0))
    finally:
        reader.close()


def ends_of(server: Kafka, topic: str) -> int:
    """Count the records of a topic."""
    reader = reader_of(server)
    try:
        return sum(
            end(reader, topic, number) for number in reader.list_topics(topic, timeout=10).topics[topic].partitions
        )
    finally:
        reader.close()


def reader_of(server: Kafka) -> Consumer:
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    return Consumer(settings, logger=quiet)


def end(reader: Consumer, topic: str, number: int) -> int:
    """Give the offset behind the last record of a partition; while it has no leader, wait for one."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return int(reader.get_watermark_offsets(TopicPartition(topic, number), timeout=5)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def check_arrived(server: Kafka, topic: str, expected: int) -> int:
    """See that nothing is lost and first copies are in order per aggregate; give how many copies there are."""
    ids: set[str] = set()
    numbers: dict[str, list[int]] = defaultdict(list)
    found = records_of(server, topic)
    for record in found:
        pairs: Any = record.headers()
        headers = {name: value.decode() for name, value in pairs}
        if headers["id"] not in ids:
            ids.add(headers["id"])
            numbers[headers["aggregate_id"]].append(json.loads(record.value() or b"")["n"])
    assert len(ids) == expected, f"{len(ids)} events of {expected} arrived"
    for of_one in numbers.values():
        assert of_one == sorted(of_one)
    return len(found) - len(ids)
