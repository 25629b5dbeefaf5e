"""Bare clients for the textbook loop: each publishes one message, and waits until the broker has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pillarbox.bench.places import Place
from pillarbox.bench.textbook import Client, Publish
from pillarbox.core.message import Message


@contextmanager
def kafka(place: Place) -> Iterator[Publish]:
    """Produce and flush, acks=all."""
    from confluent_kafka import KafkaError, Producer

    servers = urlsplit(place.settings.broker or "").netloc
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0})

    def check(error: KafkaError | None, _: object) -> None:
        if error is not None:
            raise RuntimeError(f"Kafka refused a message: {error}")

    def publish(message: Message) -> None:
        topic, key, headers, body, _ = message
        producer.produce(topic, body, key, headers=dict(headers), on_delivery=check)
        if producer.flush(10):
            raise RuntimeError("Kafka has not acknowledged a message within 10 s")

    yield publish


@contextmanager
def redis(place: Place) -> Iterator[Publish]:
    """XADD, one at a time, on one connection."""
    from redis import Redis

    with Redis.from_url(place.settings.broker or "") as client:

        def publish(message: Message) -> None:
            topic, _, headers, body, _ = message
            client.xadd(topic, {**headers, "body": body})

        yield publish


CLIENTS: dict[str, Client] = {"kafka": kafka, "redis": redis}
"""Of those that are quicker than our own publisher where they send one message at a time."""
