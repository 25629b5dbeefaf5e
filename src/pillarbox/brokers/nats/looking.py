"""How the streams are that take the topics: asked of JetStream."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pillarbox.brokers.nats.connection import ASKING, Connection
from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.brokers.nats.streams import API, find_stream
from pillarbox.errors import BrokerUnavailable
from pillarbox.facts import NatsFacts, NatsStream


class NatsLooking:
    """Asks each topic's stream for its settings."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options

    async def __call__(self, topics: Sequence[str]) -> NatsFacts:
        connection = Connection(self._options, "pillarbox doctor", lambda words: None, lambda words: None)
        try:
            client = await connection.ready(asyncio.get_running_loop().time() + ASKING)
            streams = []
            for topic in topics:
                name = self._options.stream or await find_stream(connection, client, topic)
                if name is not None:
                    answer = await connection.ask(client, f"{API}.STREAM.INFO.{name}", {})
                    streams.append(_described(topic, name, answer, client.max_payload))
            known = client.connected_server_version
            return NatsFacts(streams, (known.major, known.minor))
        finally:
            await connection.close()


def _described(topic: str, name: str, answer: dict[str, Any], max_payload: int) -> NatsStream:
    config = answer.get("config")
    if not isinstance(config, dict):
        raise BrokerUnavailable(f"JetStream does not describe the stream {name}: {answer.get('error')}")
    return NatsStream(
        topic=topic,
        name=name,
        storage=config.get("storage", "file"),
        acknowledges=not config.get("no_ack"),
        discard=config.get("discard", "old"),
        bounded=any(int(config.get(limit) or -1) > 0 for limit in ("max_msgs", "max_bytes", "max_msgs_per_subject")),
        duplicate_window=timedelta(microseconds=int(config.get("duplicate_window") or 0) // 1000),
        replicas=int(config.get("num_replicas") or 1),
        clustered=bool((answer.get("cluster") or {}).get("name")),
        largest=min(limit if (limit := int(config.get("max_msg_size") or -1)) > 0 else max_payload, max_payload),
    )
