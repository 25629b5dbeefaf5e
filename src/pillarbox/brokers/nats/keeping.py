"""How long JetStream keeps the messages of a subject: asked of the stream that takes it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from pillarbox.brokers.nats.connection import ASKING, Client, Connection
from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.brokers.nats.streams import API, find_stream
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Kept


class NatsKeeping:
    """Asks each topic's stream for its limits."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options

    async def __call__(self, topics: Sequence[str]) -> Sequence[Kept]:
        connection = Connection(self._options, "pillarbox doctor", lambda words: None, lambda words: None)
        try:
            client = await connection.ready(asyncio.get_running_loop().time() + ASKING)
            return [kept for topic in topics for kept in await self._kept(connection, client, topic)]
        finally:
            await connection.close()

    async def _kept(self, connection: Connection, client: Client, topic: str) -> list[Kept]:
        stream = self._options.stream or await find_stream(connection, client, topic)
        if stream is None:
            return []
        answer = await connection.ask(client, f"{API}.STREAM.INFO.{stream}", {})
        config = answer.get("config")
        if not isinstance(config, dict):
            raise BrokerUnavailable(f"JetStream does not describe the stream {stream}: {answer.get('error')}")
        if config.get("retention", "limits") != "limits":
            return [Kept(topic, timedelta(0), f"the stream {stream}, which drops what was acknowledged")]
        nanoseconds = int(config.get("max_age") or 0)
        age = timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None
        return [Kept(topic, age, f"max_age of the stream {stream}")]
