"""The far end of Redis Streams keeps the subscriber's contract, on Redis and on Valkey."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.redis import RedisPublisher, RedisSubscriber
from pillarbox.core.message import Message
from pillarbox.ports import Subscriber
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import answers
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.subscriber import SubscriberContract, SubscriberFeatures
from servers.fault_proxy import FaultProxy
from servers.redis import Redis


class RedisSubscriberBench:
    features = SubscriberFeatures(
        shares_keys=True, tells_redelivery=True, notices_death=True, expels=True, goes_away=True
    )

    def __init__(self, server: Redis) -> None:
        self._server = server
        self._proxy = FaultProxy(server.port)
        self._proxy.start()
        self._publisher = RedisPublisher(server.url(), publish_timeout=timedelta(seconds=10), hooks=Hooks())
        self._opened: list[RedisSubscriber] = []

    async def publish(self, messages: Sequence[Message]) -> None:
        self._publisher.send(messages)
        assert all(outcome.error is None for outcome in await answers(self._publisher, len(messages)))

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        url = self._server.url(port=self._proxy.port)
        self._opened.append(RedisSubscriber(url, consumer=consumer, topics=topics))
        return self._opened[-1]

    async def kill(self, subscriber: Subscriber) -> None:
        """Do what the kernel does to a process that dies: close its connections, nothing else."""
        assert isinstance(subscriber, RedisSubscriber)
        await subscriber.vanish()

    async def expel(self, subscriber: Subscriber) -> None:
        """Let its lease run out, as if it had hung."""
        assert isinstance(subscriber, RedisSubscriber)
        name = f"m:{subscriber._member.name}"
        with self._server.client() as client:
            for key in client.keys("*:pillarbox:*"):
                if client.hexists(key, name):
                    client.hset(key, name, "0 0")

    async def go_away(self) -> None:
        self._proxy.cut()

    async def come_back(self) -> None:
        self._proxy.heal()

    async def close(self) -> None:
        await self._publisher.close()
        for subscriber in self._opened:
            await subscriber.close()
        self._proxy.close()


@pytest.mark.parametrize("rule", rules_of(SubscriberContract, RedisSubscriberBench.features))
async def test_the_redis_subscriber_keeps_the_rule(rule: str, redis: Redis) -> None:
    await check(SubscriberContract, rule, RedisSubscriberBench(redis))
