"""A stream of JetStream of the torture's own, read from its first message."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType
from nats.js.errors import NotFoundError

from pillarbox.errors import ConfigError
from pillarbox.torture.taps.caught import PATIENCE, Caught

STREAM = "PILLARBOX_TORTURE"
PAGE = 500
T = TypeVar("T")


class NatsTap:
    """The subjects of all topics in one stream, which keeps messages in a file and takes every copy that is sent."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.query:
            raise ConfigError(
                "broker: the torture's tap reads NATS without options; leave out what follows the question mark"
            )
        self._url = url

    def prepare(self, topics: Sequence[str]) -> None:
        async def make(stream: JetStreamContext) -> None:
            # The shortest window there is: copies are to be seen, not dropped.
            window = 0.1
            await stream.add_stream(
                name=STREAM, subjects=list(topics), storage=StorageType.FILE, duplicate_window=window
            )

        self.remove(topics)
        self._with(make)

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        async def read(stream: JetStreamContext) -> list[Caught]:
            how = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
            reader = await stream.pull_subscribe("", stream=STREAM, config=how)
            found: list[Caught] = []
            last = (await stream.stream_info(STREAM)).state.messages
            while len(found) < last:
                for message in await reader.fetch(min(PAGE, last - len(found)), timeout=PATIENCE):
                    given, at = message.headers or {}, message.metadata.timestamp.timestamp()
                    headers = {name: value for name, value in given.items() if not name.startswith("Nats-")}
                    found.append(Caught(message.subject, headers.get("aggregate_id"), headers, message.data, at))
            return found

        yield from self._with(read)

    def remove(self, topics: Sequence[str]) -> None:
        async def delete(stream: JetStreamContext) -> None:
            try:
                await stream.delete_stream(STREAM)
            except NotFoundError:
                pass  # there was none

        self._with(delete)

    def _with(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        async def run() -> T:
            client = await nats.connect(self._url, connect_timeout=int(PATIENCE), allow_reconnect=False)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())
