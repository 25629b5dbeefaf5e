"""Topics of Kafka, every partition from its beginning."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pillarbox.torture.taps.caught import PATIENCE, Caught, text

PARTITIONS, PAGE = 8, 1000
WHEN_STORED = {"message.timestamp.type": "LogAppendTime"}
"""By the broker's clock: a relay's may be an hour wrong."""


class KafkaTap:
    """Topics of Kafka, every partition from its beginning."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        login, _, servers = parts.netloc.rpartition("@")
        user, _, password = map(unquote, login.partition(":"))
        # What else the URL says are librdkafka's own words.
        given = {"sasl.username": user, "sasl.password": password, "sasl.mechanism": "PLAIN"} if login else {}
        self._settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": servers,
            **given,
            **dict(parse_qsl(parts.query)),
        }

    def prepare(self, topics: Sequence[str]) -> None:
        self.remove(topics)
        admin = AdminClient(self._settings)  # what it was asked for ends with it
        made = admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, config=WHEN_STORED) for topic in topics])
        for future in made.values():
            future.result(PATIENCE)

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        consumer = Consumer({**self._settings, "group.id": "pillarbox-torture-tap", "enable.auto.commit": False})
        try:
            for topic in topics:
                for partition in range(PARTITIONS):
                    place = TopicPartition(topic, partition, 0)
                    _, end = consumer.get_watermark_offsets(place, timeout=PATIENCE)
                    consumer.assign([place])
                    yield from self._until(consumer, end)
        finally:
            consumer.close()

    def _until(self, consumer: Any, end: int) -> Iterator[Caught]:
        offset = 0
        while offset < end:
            messages = consumer.consume(min(PAGE, end - offset), PATIENCE)  # it waits for so many
            if not messages:
                raise RuntimeError(f"Kafka has not given what it has up to the offset {end} within {PATIENCE:g} s")
            for message in messages:
                if message.error():
                    raise RuntimeError(f"Kafka: {message.error()}")
                headers = {name: text(value) for name, value in message.headers() or [] if value is not None}
                key = None if message.key() is None else text(message.key())
                yield Caught(message.topic(), key, headers, message.value() or b"", message.timestamp()[1] / 1e3)
                offset = message.offset() + 1

    def remove(self, topics: Sequence[str]) -> None:
        admin = AdminClient(self._settings)
        there = admin.list_topics(timeout=PATIENCE).topics
        gone = [topic for topic in topics if topic in there]
        for future in admin.delete_topics(gone).values() if gone else ():
            future.result(PATIENCE)
