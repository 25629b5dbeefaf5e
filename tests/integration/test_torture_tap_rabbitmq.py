"""What torture makes at RabbitMQ before anything else is at work."""

import asyncio
from datetime import timedelta

from pillarbox.brokers.rabbitmq import Address, RabbitPublisher, RabbitSubscriber
from pillarbox.core.message import Message
from pillarbox.torture.taps.rabbitmq import CONSUMER, EXCHANGE, RabbitTap
from servers.rabbitmq import RabbitMQ

TOPIC = "torture-accounts"


async def test_what_is_published_before_the_first_consumer_is_at_work_gets_to_it(
    rabbitmq: RabbitMQ, vhost: str
) -> None:
    url = f"{rabbitmq.url(vhost)}?exchange={EXCHANGE}"
    await asyncio.to_thread(RabbitTap(url).prepare, [TOPIC])
    publisher = RabbitPublisher(Address.parse(url), publish_timeout=timedelta(seconds=5))
    publisher.send([Message(TOPIC, "7", {"id": "1", "type": "Placed"}, b"{}", 1)])
    assert [outcome.error for outcome in await publisher.outcomes()] == [None]
    await publisher.close()
    subscriber = RabbitSubscriber(Address.parse(url), consumer=CONSUMER, topics=[TOPIC])
    [delivery] = await subscriber.deliveries(10, 5)
    await subscriber.acknowledge([delivery])
    await subscriber.close()
    assert delivery.message.headers["id"] == "1"
