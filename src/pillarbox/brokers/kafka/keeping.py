"""How long Kafka keeps the records of a topic: asked of the cluster, in a thread, because its client waits."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from pillarbox.brokers.kafka.client import TOPIC_UNKNOWN, Journal, KafkaError, topic_settings
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Kept

PATIENCE = 10.0
"""Seconds in which the cluster must answer."""


class KafkaKeeping:
    """Asks for the topics' own settings, or the brokers' where a topic has none."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options

    async def __call__(self, topics: Sequence[str]) -> Sequence[Kept]:
        return await asyncio.to_thread(self._ask, topics)

    def _ask(self, topics: Sequence[str]) -> list[Kept]:
        journal, kept = Journal(), []
        for topic, settings in topic_settings(self._options, topics, PATIENCE, journal).items():
            if not isinstance(settings, KafkaError):
                kept.append(kept_by(topic, settings))
            elif settings.code() not in TOPIC_UNKNOWN:
                words = journal.last_words() or settings.str()
                raise BrokerUnavailable(f"Kafka does not say how long it keeps the topic {topic}: {words}")
        return kept


def kept_by(topic: str, settings: dict[str, str]) -> Kept:
    """Read a topic's settings: records go for their age only where the policy is to delete."""
    policy = settings.get("cleanup.policy", "delete")
    if "delete" not in policy:
        return Kept(topic, None, f"its cleanup.policy, {policy}")
    milliseconds = int(settings["retention.ms"])
    if milliseconds < 0:
        room = int(settings.get("retention.bytes", "-1"))
        by = "its retention.ms, -1" if room < 0 else f"its retention.ms, -1 (and its retention.bytes, {room:,})"
        return Kept(topic, None, by)
    # Longer than a timedelta is for ever to anybody.
    age = timedelta(milliseconds=milliseconds) if milliseconds < 86_400_000 * 999_999_999 else None
    return Kept(topic, age, "its retention.ms")
