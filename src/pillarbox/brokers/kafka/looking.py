"""How Kafka keeps the records of a topic: asked of the cluster, in a thread, because its client waits."""

import asyncio
from collections.abc import Sequence

from pillarbox.brokers.kafka.client import (
    TOPIC_UNKNOWN,
    Journal,
    KafkaError,
    can_be_topic,
    makes_topics,
    replication,
    topic_settings,
)
from pillarbox.brokers.kafka.keeping import PATIENCE
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.errors import BrokerUnavailable
from pillarbox.facts import KafkaFacts, KafkaTopic

LARGEST = 1_000_000
"""What librdkafka takes as one message unless its message.max.bytes says otherwise, in bytes."""


class KafkaLooking:
    """Asks for the cluster's size, and how each topic is replicated."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options

    async def __call__(self, topics: Sequence[str]) -> KafkaFacts:
        return await asyncio.to_thread(self._ask, topics)

    def _ask(self, topics: Sequence[str]) -> KafkaFacts:
        journal = Journal()
        found = replication(self._options, PATIENCE, journal)
        if isinstance(found, KafkaError):
            raise BrokerUnavailable(f"Kafka does not say what it has: {journal.last_words() or found.str()}")
        described = []
        for topic, settings in topic_settings(self._options, topics, PATIENCE, journal).items():
            if not isinstance(settings, KafkaError):
                described.append(topic_of(topic, found.replicas.get(topic, 0), settings))
            elif settings.code() not in TOPIC_UNKNOWN:
                words = journal.last_words() or settings.str()
                raise BrokerUnavailable(f"Kafka does not describe the topic {topic}: {words}")
        largest = int(self._options.properties.get("message.max.bytes", LARGEST))
        misnamed = [topic for topic in topics if not can_be_topic(topic)]
        by_itself = makes_topics(self._options, found.brokers[0], PATIENCE, journal) if found.brokers else None
        return KafkaFacts(len(found.brokers), largest, described, misnamed, by_itself)


def topic_of(name: str, replicas: int, settings: dict[str, str]) -> KafkaTopic:
    """Read a topic's settings."""
    return KafkaTopic(
        name=name,
        replicas=replicas,
        min_insync=int(settings["min.insync.replicas"]),
        unclean=settings.get("unclean.leader.election.enable") == "true",
        largest=int(settings["max.message.bytes"]),
    )
