"""A queue of its own on a topic exchange of the torture's own: it gets what consumers get, and nobody else reads it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import aiormq
from aiormq.abc import AbstractChannel, FieldValue

from pillarbox.errors import ConfigError
from pillarbox.torture.taps.caught import Caught, text

EXCHANGE = "pillarbox-torture"
QUEUE = f"{EXCHANGE}-tap"
CONSUMER = "torture"
ITS_QUEUE: dict[str, FieldValue] = {"x-queue-type": "quorum", "x-single-active-consumer": True}
T = TypeVar("T")


class RabbitTap:
    """RabbitMQ does not say when it stored a message."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        if options != {"exchange": [EXCHANGE]}:
            raise ConfigError(
                f"broker: the torture makes an exchange of its own: end the URL in ?exchange={EXCHANGE}, with no other"
                " option"
            )
        scheme = "amqps" if parts.scheme == "amqps" else "amqp"
        self._url = parts._replace(scheme=scheme, query="").geturl()

    def prepare(self, topics: Sequence[str]) -> None:
        async def make(channel: AbstractChannel) -> None:
            version = str(channel.connection.server_properties["version"])
            limit: dict[str, FieldValue] = {"x-delivery-limit": -1} if int(version.partition(".")[0]) >= 4 else {}
            await channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
            await channel.queue_declare(QUEUE, durable=True)
            for topic in topics:
                await channel.queue_bind(QUEUE, EXCHANGE, topic)
                # The consumers' as well, as they make them: what is published before it is bound no queue ever gets,
                # and relays may be at work before the first consumer is.
                await channel.queue_declare(f"{CONSUMER}.{topic}", durable=True, arguments=ITS_QUEUE | limit)
                await channel.queue_bind(f"{CONSUMER}.{topic}", EXCHANGE, topic)

        self.remove(topics)
        self._with(make)

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        async def read(channel: AbstractChannel) -> list[Caught]:
            found: list[Caught] = []
            while (message := await channel.basic_get(QUEUE, no_ack=True)).delivery_tag:
                given = message.header.properties.headers or {}
                headers = {name: text(value) for name, value in given.items() if isinstance(value, (bytes, str))}
                topic = message.routing_key or ""
                found.append(Caught(topic, headers.get("aggregate_id"), headers, message.body, None))
            return found

        yield from self._with(read)

    def remove(self, topics: Sequence[str]) -> None:
        async def delete(channel: AbstractChannel) -> None:
            for queue in (QUEUE, *(f"{CONSUMER}.{topic}" for topic in topics)):
                await channel.queue_delete(queue)
            await channel.exchange_delete(EXCHANGE)

        self._with(delete)

    def _with(self, work: Callable[[AbstractChannel], Awaitable[T]]) -> T:
        async def run() -> T:
            connection = await aiormq.connect(self._url)
            try:
                return await work(await connection.channel())
            finally:
                await connection.close()

        return asyncio.run(run())
