"""A stream of its own for a run's subjects, in files, as a careful operator would make it."""

import asyncio
from collections.abc import Sequence

from pillarbox.brokers.nats.connection import ASKING, Connection
from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.brokers.nats.streams import API
from pillarbox.errors import BrokerUnavailable, ConfigError

NOT_FOUND = 10059
"""What JetStream calls a stream that is not there."""


class NatsTrial:
    """Makes and removes one stream for all topics, named as the first of them."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options

    async def make(self, topics: Sequence[str], consumer: str) -> None:
        if self._options.stream is not None:
            raise ConfigError("nats.stream: topics of a run have a stream of their own: leave it out")
        wanted = {"name": topics[0], "subjects": list(topics), "storage": "file"}
        if error := await self._ask("CREATE", topics[0], wanted):
            raise BrokerUnavailable(f"JetStream makes no stream {topics[0]}: {error.get('description')}")

    async def remove(self, topics: Sequence[str], consumer: str) -> None:
        error = await self._ask("DELETE", topics[0], {})
        if error and error.get("err_code") != NOT_FOUND:
            raise BrokerUnavailable(f"JetStream does not remove the stream {topics[0]}: {error.get('description')}")

    async def _ask(self, deed: str, stream: str, question: object) -> dict[str, object]:
        connection = Connection(self._options, "pillarbox trial", lambda words: None, lambda words: None)
        try:
            client = await connection.ready(asyncio.get_running_loop().time() + ASKING)
            answer = await connection.ask(client, f"{API}.STREAM.{deed}.{stream}", question)
            return answer.get("error") or {}
        finally:
            await connection.close()
