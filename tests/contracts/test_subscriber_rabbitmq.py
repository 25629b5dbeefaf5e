"""RabbitMQ's far end keeps the subscriber's contract."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.rabbitmq import Address, RabbitPublisher, RabbitSubscriber
from pillarbox.core.message import Message
from pillarbox.ports import Subscriber
from pillarbox.testing.contracts.publisher import answers
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.subscriber import (
    SubscriberContract,
    SubscriberFeatures,
)
from servers.fault_proxy import FaultProxy
from servers.rabbitmq import RabbitMQ
from tests.contracts.rabbitmq_bench import EXCHANGE


class RabbitSubscriberBench:
    # A queue keeps its order towards one reader only.
    features = SubscriberFeatures(
        stands_by=True, tells_redelivery=True, notices_death=True, expels=True, goes_away=True
    )

    def __init__(self, server: RabbitMQ, vhost: str, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._through = Address.parse(f"{server.url(vhost, port=proxy.port)}?exchange={EXCHANGE}")
        self._opened: list[RabbitSubscriber] = []
        direct = Address.parse(f"{server.url(vhost)}?exchange={EXCHANGE}")
        self._publisher = RabbitPublisher(direct, publish_timeout=timedelta(seconds=10))
        server.declare_exchange(vhost, EXCHANGE)
        # As at a deployment: what is published before a queue is there does not wait for it.
        for consumer, topic in (("billing", "orders"), ("billing", "mails"), ("shipping", "orders")):
            server.declare_queue(vhost, f"{consumer}.{topic}", **{"x-single-active-consumer": True})
            server.bind(vhost, EXCHANGE, f"{consumer}.{topic}", topic)

    async def publish(self, messages: Sequence[Message]) -> None:
        self._publisher.send(messages)
        assert not any(outcome.error for outcome in await answers(self._publisher, len(messages)))

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        self._opened.append(RabbitSubscriber(self._through, consumer=consumer, topics=topics))
        return self._opened[-1]

    async def kill(self, subscriber: Subscriber) -> None:
        """Do what the kernel does to a process that dies: close its sockets, nothing else."""
        assert isinstance(subscriber, RabbitSubscriber)
        if subscriber._reception is not None:
            subscriber._reception.link.abort()
        subscriber._closed = True

    async def expel(self, subscriber: Subscriber) -> None:
        """Break its connection, as the server does with one whose heartbeats do not come."""
        assert isinstance(subscriber, RabbitSubscriber)
        assert subscriber._reception is not None
        subscriber._reception.link.abort()

    async def go_away(self) -> None:
        self._proxy.cut()

    async def come_back(self) -> None:
        self._proxy.heal()

    async def close(self) -> None:
        await self.come_back()
        await self._publisher.close()
        for subscriber in self._opened:
            await subscriber.close()


RULES = rules_of(SubscriberContract, RabbitSubscriberBench.features)


@pytest.mark.parametrize("rule", RULES)
async def test_the_rabbitmq_subscriber_keeps_the_rule(rule: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    with FaultProxy(rabbitmq.port) as proxy:
        await check(SubscriberContract, rule, RabbitSubscriberBench(rabbitmq, vhost, proxy))
