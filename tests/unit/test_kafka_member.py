"""A member of a group on Kafka that was taken for dead, with nobody at its broker's address."""

from typing import Any

import pytest

from pillarbox.brokers.kafka import KafkaOptions, KafkaSubscriber
from pillarbox.errors import BrokerUnavailable
from tests.integration.relay_shop import until

NOBODY: Any = None


async def test_who_asks_while_the_broker_is_away_brings_an_expelled_member_back() -> None:
    """Whether the broker is there again is only seen by a member that is not expelled."""
    subscriber = KafkaSubscriber(KafkaOptions.read("//127.0.0.1:1", {}), consumer="billing", topics=["orders"])
    member = subscriber._member
    member._lost(NOBODY, [])
    member._turn()
    assert member._expelled, "nobody has asked: he may hang"
    member.away = "Kafka does not answer"
    with pytest.raises(BrokerUnavailable, match="Kafka does not answer"):
        await subscriber.deliveries(1, 0.1)
    await until(lambda: not member._expelled, 5)
    await subscriber.close()
