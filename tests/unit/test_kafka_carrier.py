"""What Kafka's client says of a message at once, without any broker."""

from datetime import timedelta
from typing import Any

from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.brokers.kafka.publisher import KafkaPublisher
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishRejected


async def test_a_topic_with_too_long_a_name_is_refused_for_good() -> None:
    """As one that is away it would be tried for ever, and everything behind it would wait."""
    options = KafkaOptions.read("//127.0.0.1:1", {})
    publisher = KafkaPublisher(options, publish_timeout=timedelta(seconds=5))
    publisher.send([Message("漢" * 255, "7", {"id": "1", "type": "Placed"}, b"{}", 1)])
    outcomes: Any = await publisher.outcomes()
    await publisher.close()
    [(ticket, error)] = outcomes
    assert ticket == 1
    assert isinstance(error, PublishRejected)
    assert "249 characters" in str(error)


async def test_nothing_is_stored_before_kafka_has_reported_it() -> None:
    """The client takes it at once, and nobody is there: what it keeps in memory is nowhere else."""
    options = KafkaOptions.read("//127.0.0.1:1", {})
    publisher = KafkaPublisher(options, publish_timeout=timedelta(seconds=1))
    publisher.send([Message("orders", "7", {"id": "1", "type": "Placed"}, b"{}", 1)])
    outcomes: Any = await publisher.outcomes()
    await publisher.close()
    [(ticket, error)] = outcomes
    assert ticket == 1
    assert isinstance(error, BrokerUnavailable)
