"""Taps: what a broker has, read at the end by its own client's plain code. Nothing of the relay's or the consumer's.

A tap also makes the topics, where a broker does not make them by itself.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from pillarbox.errors import ConfigError

PARTITIONS = 8
PATIENCE = 30.0


class Caught(NamedTuple):
    """A message as the broker has it: when it was stored, in seconds since 1970, as far as the broker says."""

    topic: str
    key: str | None
    headers: dict[str, str]
    body: bytes
    at: float


class Tap(Protocol):
    """One broker. Of each aggregate, messages come in the order in which the broker stored them."""

    def prepare(self, topics: Sequence[str]) -> None:
        """Make topics anew, empty."""

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        """Read everything that is there now."""

    def remove(self, topics: Sequence[str]) -> None:
        """Remove topics."""


def tap_at(url: str) -> Tap:
    """Give the tap for a broker's URL."""
    scheme = url.partition(":")[0]
    if scheme not in TAPS:
        known = ", ".join(f"{name}:" for name in TAPS)
        raise ConfigError(f"broker: the torture has no tap for {scheme}: yet; it knows {known}")
    tap: Tap = TAPS[scheme](url)
    return tap


class SqliteTap:
    """The embedded broker's file."""

    def __init__(self, url: str) -> None:
        self._file = url.removeprefix("sqlite:///")

    def prepare(self, topics: Sequence[str]) -> None:
        """There is nothing to make."""

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=30)) as stream:
            for topic, key, headers, body, at in stream.execute(
                "SELECT topic, key, headers, body, at FROM messages ORDER BY id"
            ):
                yield Caught(topic, key, json.loads(headers), body, at / 1e6)

    def remove(self, topics: Sequence[str]) -> None:
        """The file goes with its directory."""


class RedisTap:
    """Streams of Redis or Valkey."""

    def __init__(self, url: str) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(url)

    def prepare(self, topics: Sequence[str]) -> None:
        self.remove(topics)

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        for topic in topics:
            start = "-"
            while page := self._client.xrange(topic, start, count=1000):
                for place, fields in page:
                    headers = {_text(name): _text(value) for name, value in fields.items() if name != b"body"}
                    key = headers.get("aggregate_id")
                    yield Caught(topic, key, headers, fields[b"body"], int(place.split(b"-")[0]) / 1e3)
                start = "(" + page[-1][0].decode()

    def remove(self, topics: Sequence[str]) -> None:
        self._client.delete(*topics)


class KafkaTap:
    """Topics of Kafka, every partition from its beginning."""

    def __init__(self, url: str) -> None:
        self._servers = urlsplit(url).netloc

    def prepare(self, topics: Sequence[str]) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        self.remove(topics)
        made = AdminClient({"bootstrap.servers": self._servers}).create_topics(
            [NewTopic(topic, num_partitions=PARTITIONS) for topic in topics]
        )
        for future in made.values():
            future.result(PATIENCE)

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self._servers, "group.id": "pillarbox-torture-tap", "enable.auto.commit": False}
        )
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
            messages = consumer.consume(1000, PATIENCE)
            if not messages:
                raise RuntimeError(f"Kafka has not given what it has up to the offset {end} within {PATIENCE:g} s")
            for message in messages:
                if message.error():
                    raise RuntimeError(f"Kafka: {message.error()}")
                headers = {name: _text(value) for name, value in message.headers() or [] if value is not None}
                key = None if message.key() is None else _text(message.key())
                yield Caught(message.topic(), key, headers, message.value() or b"", message.timestamp()[1] / 1e3)
                offset = message.offset() + 1

    def remove(self, topics: Sequence[str]) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self._servers})
        there = admin.list_topics(timeout=PATIENCE).topics
        gone = [topic for topic in topics if topic in there]
        for future in admin.delete_topics(gone).values() if gone else ():
            future.result(PATIENCE)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


TAPS: dict[str, Any] = {"sqlite": SqliteTap, "redis": RedisTap, "rediss": RedisTap, "kafka": KafkaTap}
