"""Topics of Kafka for a run: made with several partitions, and removed with their records and the group's offsets."""

import asyncio
from collections.abc import Sequence

from pillarbox.brokers.kafka.client import GROUP_UNKNOWN, TOPIC_UNKNOWN, Journal, make_topics, remove_topics
from pillarbox.brokers.kafka.keeping import PATIENCE
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.errors import BrokerUnavailable

PARTITIONS = 8


class KafkaTrial:
    """Makes and removes topics, in a thread, because the client waits."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options

    async def make(self, topics: Sequence[str], consumer: str) -> None:
        await asyncio.to_thread(self._make, topics)

    async def remove(self, topics: Sequence[str], consumer: str) -> None:
        await asyncio.to_thread(self._remove, topics, consumer)

    def _make(self, topics: Sequence[str]) -> None:
        journal = Journal()
        for error in make_topics(self._options, topics, PARTITIONS, PATIENCE, journal):
            raise BrokerUnavailable(f"Kafka makes no topic: {journal.last_words() or error.str()}")

    def _remove(self, topics: Sequence[str], consumer: str) -> None:
        journal = Journal()
        for error in remove_topics(self._options, topics, consumer, PATIENCE, journal):
            if error.code() not in (*TOPIC_UNKNOWN, *GROUP_UNKNOWN):
                raise BrokerUnavailable(f"Kafka removes no topic: {journal.last_words() or error.str()}")
