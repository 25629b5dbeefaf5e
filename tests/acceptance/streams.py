"""A stream on each broker that somebody can consume: how to publish to it, and how much of it is not acknowledged."""

import asyncio
import importlib
import sqlite3
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiormq
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from nats import connect
from redis.exceptions import ResponseError

from pillarbox.brokers.given import Given
from pillarbox.brokers.nats.seat import durable_name
from pillarbox.brokers.nats.wire import pack
from pillarbox.core.message import Message
from pillarbox.settings.brokers import BROKERS
from pillarbox.settings.urls import parse_url
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import SystemClock
from servers.kafka import Kafka, quiet
from servers.nats import Nats, delete_streams, make_stream
from servers.rabbitmq import RabbitMQ
from servers.redis import Redis

CONSUMER, PARTITIONS = "billing", 12
UNKNOWN = sys.maxsize
"""How much is unread while nobody can tell: all of it, to whoever waits until it is read."""
UNREAD = """
SELECT count(*) FROM messages LEFT JOIN positions
ON positions.consumer = ? AND positions.topic = messages.topic AND positions.partition = messages.partition
WHERE messages.topic = ? AND messages.id > coalesce(positions.position, 0)
"""


async def publish(url: str, messages: Sequence[Message]) -> None:
    """Publish messages as a relay does."""
    parsed = parse_url("broker", url)
    module = next(name for name, kind in BROKERS.items() if parsed.scheme in kind.schemes)
    given = Given(parsed, {}, timedelta(seconds=30), SystemClock(), Hooks())
    publisher = importlib.import_module(f"pillarbox.brokers.{module}").open_publisher(given)()
    publisher.send([message._replace(ticket=ticket) for ticket, message in enumerate(messages)])
    answered = 0
    while answered < len(messages):
        outcomes = await publisher.outcomes()
        assert not [outcome.error for outcome in outcomes if outcome.error]
        answered += len(outcomes)
    await publisher.close()


async def publish_copies(url: str, messages: Sequence[Message]) -> None:
    """Publish messages to NATS as a relay does whose copies come when the stream has forgotten their ids."""
    client = await connect(url)
    stream = client.jetstream()
    answers = []
    for message in messages:
        headers = pack(message, "TEST", 1 << 20)
        del headers["Nats-Msg-Id"]
        answers.append(await stream.publish_async(message.topic, message.body, headers=headers))
    await asyncio.gather(*answers)
    await client.close()


class Stream(NamedTuple):
    """A topic of a broker, empty at first."""

    topic: str
    url: str
    unread: Callable[[], int]
    """Counts what the consumer has not acknowledged."""
    sends: Callable[[str, Sequence[Message]], Coroutine[Any, Any, None]] = publish

    def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages to the topic in their order, and wait until all are there."""
        asyncio.run(self.sends(self.url, [message._replace(topic=self.topic) for message in messages]))


@contextmanager
def stream_on(broker: str, topic: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    """Make a stream on a broker; the server is that of the fixtures."""
    with (STREAMS | {"competing": competing})[broker](topic, folder, request) as stream:
        yield stream


@contextmanager
def embedded(topic: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    def unread() -> int:
        with closing(sqlite3.connect(folder / "stream.db", timeout=30)) as file:
            return int(file.execute(UNREAD, [CONSUMER, topic]).fetchone()[0])

    yield Stream(topic, f"sqlite:///{folder / 'stream.db'}", unread)


@contextmanager
def redis(topic: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    server: Redis = request.getfixturevalue("redis_at")("redis")
    with server.client() as client:
        client.flushall()

        def unread() -> int:
            try:
                (group,) = client.xinfo_groups(topic)
            except (ResponseError, ValueError):  # nobody has consumed yet
                return int(client.xlen(topic))
            return int(group["pending"]) + int(group["lag"])

        yield Stream(topic, server.url(), unread)


@contextmanager
def kafka(topic: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    server: Kafka = request.getfixturevalue("kafka")
    server.create_topic(topic, PARTITIONS)
    settings = {"bootstrap.servers": server.bootstrap, "group.id": CONSUMER, "enable.auto.commit": False}
    asking = Consumer(settings, logger=quiet)  # it never joins the group

    def unread() -> int:
        try:
            places = asking.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=10)
            return sum(asking.get_watermark_offsets(place, timeout=10)[1] - max(0, place.offset) for place in places)
        except KafkaException as error:  # under load a broker may lose its leaders for a moment: ask again
            if not error.args[0].retriable():
                raise
            return UNKNOWN

    try:  # a member that is killed says nothing: let the group miss it soon
        yield Stream(topic, f"{server.url}?session.timeout.ms=2000&heartbeat.interval.ms=300", unread)
    finally:
        asking.close()


def rabbitmq(topic: str, folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Stream]:
    return _queue(topic, request, **{"x-single-active-consumer": True})


def competing(topic: str, folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Stream]:
    """Make a queue of RabbitMQ that gives each message to whichever member is free: it keeps no order."""
    return _queue(topic, request)


@contextmanager
def _queue(topic: str, request: pytest.FixtureRequest, **arguments: object) -> Iterator[Stream]:
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost: str = request.getfixturevalue("vhost")
    server.declare_queue(vhost, topic, **arguments)

    async def ready() -> int:
        connection = await aiormq.connect(server.url(vhost).replace("rabbitmq:", "amqp:", 1))
        async with connection:
            channel = await connection.channel()
            return (await channel.queue_declare(topic, passive=True)).message_count or 0

    def unread() -> int:  # what is with a member is told by the statistics alone, and they are up to 5 s old
        (queue,) = server.ask("GET", f"queues/{vhost}?disable_stats=true&enable_queue_totals=true")
        return asyncio.run(ready()) or int(queue["messages"])

    yield Stream(topic, server.url(vhost), unread)


@contextmanager
def nats(topic: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    server: Nats = request.getfixturevalue("nats_server")
    asyncio.run(make_stream(server.url, "TEST", topic))

    def unread() -> int:
        try:
            found = server.ask(f"CONSUMER.INFO.TEST.{durable_name(CONSUMER, topic)}")
        except RuntimeError:  # nobody has consumed yet
            return int(server.ask("STREAM.INFO.TEST")["state"]["messages"])
        return int(found["num_pending"]) + int(found["num_ack_pending"])

    try:  # a member that is killed says nothing: let the others miss it soon
        yield Stream(topic, f"{server.url}?lease=1", unread, publish_copies)
    finally:
        asyncio.run(delete_streams(server.url))


STREAMS: dict[str, Callable[[str, Path, pytest.FixtureRequest], AbstractContextManager[Stream]]]
STREAMS = {"embedded": embedded, "redis": redis, "kafka": kafka, "rabbitmq": rabbitmq, "nats": nats}
"""One of each broker, as it is to be used."""
