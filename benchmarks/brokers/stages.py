"""The brokers on their stage: each with its server, ready for one topic, and its bare client publishing messages.

A bare client does what its documentation shows for speed: many messages in flight, every one acknowledged. It has
connected and sent a message before its time begins.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from benchmarks.shop import TOPIC
from pillarbox.core.message import Message

IN_FLIGHT = 500
BATCH = 1000
"""How many go at once where a batch is answered as a whole, as a relay's do."""
PARTITIONS = 3
Publish = Callable[[Sequence[Message]], float]
"""Gives the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker that runs: the URL for the relay, and how the bare client publishes."""

    name: str
    client: str
    url: str
    goal: float | None
    publish: Publish
    empty: Callable[[], None]
    """Forget what was published, so that each round finds the same."""
    pid: int
    """The server's process."""


@contextmanager
def kafka() -> Iterator[Stage]:
    from confluent_kafka import OFFSET_END, KafkaError, Producer, TopicPartition

    from servers.kafka import FULL_JVM, Kafka, quiet

    with Kafka(jvm=FULL_JVM) as server:
        settings = {"bootstrap.servers": server.bootstrap, "acks": "all", "enable.idempotence": True}

        def publish(messages: Sequence[Message]) -> float:
            producer, acknowledged = Producer(settings | {"partitioner": "murmur2_random"}, logger=quiet), 0

            def report(error: KafkaError | None, _: object) -> None:
                nonlocal acknowledged
                if error is None:
                    acknowledged += 1

            def send(batch: Sequence[Message]) -> None:
                for topic, key, headers, body, _ in batch:
                    producer.produce(topic, body, key, headers=dict(headers), on_delivery=report)
                producer.flush()

            send(messages[:1])
            began = perf_counter()
            for first in range(0, len(messages), BATCH):
                send(messages[first : first + BATCH])
            if acknowledged != len(messages) + 1:
                raise RuntimeError(f"Kafka has acknowledged {acknowledged} of {len(messages) + 1} messages")
            return perf_counter() - began

        def empty() -> None:
            ends = [TopicPartition(TOPIC, number, OFFSET_END) for number in range(PARTITIONS)]
            admin = server.admin()  # what it was asked for ends with it
            for done in admin.delete_records(ends).values():
                done.result(30)

        server.create_topic(TOPIC, PARTITIONS)
        yield Stage("Kafka", "confluent-kafka", server.url, 0.6, publish, empty, server.servers[0].pid)


@contextmanager
def redis() -> Iterator[Stage]:
    from hiredis import pack_command
    from redis.asyncio import Connection

    from pillarbox.brokers.redis.entries import fields_of
    from servers.redis import Redis

    with Redis("redis", settings={"appendfsync": "everysec"}) as server:
        begin, end = pack_command(("MULTI",)), pack_command(("EXEC",))

        async def send(connection: Connection, batch: Sequence[Message]) -> None:
            """Pack with hiredis and send whole transactions, as we do."""
            commands = [pack_command(("XADD", TOPIC, "*", *fields_of(message))) for message in batch]  # type: ignore[arg-type]
            await connection.send_packed_command([begin, *commands, end], check_health=False)
            for _ in range(len(batch) + 2):
                await connection.read_response(disable_decoding=True)

        async def publish(messages: Sequence[Message]) -> float:
            connection = Connection(host="127.0.0.1", port=server.port)
            await connection.connect()  # type: ignore[no-untyped-call]
            await send(connection, messages[:1])
            began = perf_counter()
            for first in range(0, len(messages), BATCH):
                await send(connection, messages[first : first + BATCH])
            took = perf_counter() - began
            await connection.disconnect()
            return took

        def empty() -> None:
            with server.client() as client:
                client.flushall()

        yield Stage(
            "Redis",
            "redis-py with hiredis",
            server.url(),
            0.6,
            lambda messages: asyncio.run(publish(messages)),
            empty,
            server.server.pid,
        )


@contextmanager
def nats() -> Iterator[Stage]:
    import nats as client_library

    from servers.nats import Nats

    with Nats() as server:

        async def publish(messages: Sequence[Message]) -> float:
            client = await client_library.connect(server.url)
            stream = client.jetstream(publish_async_max_pending=IN_FLIGHT)
            await stream.publish(TOPIC, b"")
            began = perf_counter()
            for message in messages:
                headers = {**message.headers, "Nats-Msg-Id": message.headers["id"]}
                await stream.publish_async(TOPIC, message.body, headers=headers)
            await stream.publish_async_completed()
            took = perf_counter() - began
            await client.close()
            return took

        async def anew() -> None:
            client = await client_library.connect(server.url)
            stream = client.jetstream()
            try:
                await stream.delete_stream("shop")
            except client_library.js.errors.NotFoundError:
                pass  # the first round
            await stream.add_stream(name="shop", subjects=[TOPIC])
            await client.close()

        asyncio.run(anew())
        yield Stage(
            "NATS",
            "nats-py",
            server.url,
            0.65,
            lambda messages: asyncio.run(publish(messages)),
            lambda: asyncio.run(anew()),
            server.server.pid,
        )


@contextmanager
def rabbitmq() -> Iterator[Stage]:
    import aio_pika

    from servers.rabbitmq import RabbitMQ

    with RabbitMQ() as server:

        async def publish(messages: Sequence[Message]) -> float:
            connection = await aio_pika.connect(server.url("bench").replace("rabbitmq:", "amqp:"))
            async with connection:
                channel = await connection.channel(publisher_confirms=True)
                exchange = await channel.get_exchange("events")

                async def send(message: Message) -> None:
                    properties = aio_pika.Message(
                        message.body,
                        headers=dict(message.headers),
                        message_id=message.headers["id"],
                        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    )
                    await exchange.publish(properties, TOPIC, mandatory=True)

                await send(messages[0])
                began = perf_counter()
                for first in range(0, len(messages), IN_FLIGHT):
                    await asyncio.gather(*map(send, messages[first : first + IN_FLIGHT]))
                return perf_counter() - began

        server.create_vhost("bench")
        server.declare_exchange("bench", "events")

        def anew() -> None:
            server.ask("DELETE", "queues/bench/shop")
            ready()

        def ready() -> None:
            server.declare_queue("bench", "shop")
            server.bind("bench", "events", "shop", TOPIC)

        ready()
        url = f"{server.url('bench')}?exchange=events"
        yield Stage(
            "RabbitMQ", "aio-pika", url, 0.6, lambda messages: asyncio.run(publish(messages)), anew, server.server.pid
        )


ALL = {"kafka": kafka, "redis": redis, "nats": nats, "rabbitmq": rabbitmq}
