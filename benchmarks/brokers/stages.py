"""The brokers on their stage: each with its server, ready for one topic, and its bare client publishing messages.

A bare client does what its documentation shows for speed: many messages in flight, every one acknowledged.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.shop import TOPIC
from pillarbox.core.message import Message

IN_FLIGHT = 500
Publish = Callable[[Sequence[Message]], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker that runs: the URL for the relay, and how the bare client publishes."""

    name: str
    url: str
    goal: float | None
    publish: Publish
    empty: Callable[[], None]
    """Forget what was published, so that each round finds the same."""


@contextmanager
def redis() -> Iterator[Stage]:
    from redis.asyncio import Redis as Client

    from servers.redis import Redis

    with Redis("redis", settings={"appendfsync": "everysec"}) as server:

        async def publish(messages: Sequence[Message]) -> None:
            client = Client(host="127.0.0.1", port=server.port)
            for first in range(0, len(messages), 2 * IN_FLIGHT):
                pipeline = client.pipeline(transaction=True)
                for message in messages[first : first + 2 * IN_FLIGHT]:
                    fields: dict[Any, Any] = {**message.headers, "key": message.key or "", "body": message.body}
                    pipeline.xadd(TOPIC, fields)
                await pipeline.execute()
            await client.aclose()

        def empty() -> None:
            with server.client() as client:
                client.flushall()

        yield Stage("Redis", server.url(), 0.6, lambda messages: asyncio.run(publish(messages)), empty)


@contextmanager
def nats() -> Iterator[Stage]:
    import nats as client_library

    from servers.nats import Nats

    with Nats() as server:

        async def publish(messages: Sequence[Message]) -> None:
            client = await client_library.connect(server.url)
            stream = client.jetstream(publish_async_max_pending=IN_FLIGHT)
            for message in messages:
                headers = {**message.headers, "Nats-Msg-Id": message.headers["id"]}
                await stream.publish_async(TOPIC, message.body, headers=headers)
            await stream.publish_async_completed()
            await client.close()

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
            "NATS", server.url, 0.65, lambda messages: asyncio.run(publish(messages)), lambda: asyncio.run(anew())
        )


@contextmanager
def rabbitmq() -> Iterator[Stage]:
    import aio_pika

    from servers.rabbitmq import RabbitMQ

    with RabbitMQ() as server:

        async def publish(messages: Sequence[Message]) -> None:
            connection = await aio_pika.connect(server.url("bench").replace("rabbitmq:", "amqp:"))
            async with connection:
                channel = await connection.channel(publisher_confirms=True)
                exchange = await channel.get_exchange("events")
                for first in range(0, len(messages), IN_FLIGHT):
                    await asyncio.gather(
                        *(
                            exchange.publish(
                                aio_pika.Message(
                                    message.body,
                                    headers=dict(message.headers),
                                    message_id=message.headers["id"],
                                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                                ),
                                TOPIC,
                                mandatory=True,
                            )
                            for message in messages[first : first + IN_FLIGHT]
                        )
                    )

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
        yield Stage("RabbitMQ", url, 0.6, lambda messages: asyncio.run(publish(messages)), anew)


ALL = {"redis": redis, "nats": nats, "rabbitmq": rabbitmq}
