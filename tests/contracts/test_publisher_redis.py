"""The near end of Redis Streams keeps the publisher's contract, on Redis and on Valkey, through a fault proxy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from pillarbox.brokers.redis import RedisPublisher
from pillarbox.brokers.redis.entries import message_of
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import PublisherContract
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of, rules_that_need
from servers.fault_proxy import FaultProxy
from servers.redis import Redis
from tests.contracts.proxied_bench import FEATURES, ProxiedBench
from tests.contracts.publish_and_die import publish_and_die

TOO_LARGE = (1 << 20) + 1
# One answer tells of the whole transaction, so a single one cannot be lost.
REDIS_FEATURES = replace(FEATURES, prefix_safe=True, loses_single_answers=False)


class RedisPublisherBench(ProxiedBench):
    features = REDIS_FEATURES

    def __init__(self, server: Redis, *, durable: bool = False) -> None:
        super().__init__(server, FaultProxy(server.port))
        self.proxy.start()
        self._server, self._durable = server, durable
        self._ours: list[RedisPublisher] = []

    def publisher(self) -> Publisher:
        self._ours.append(
            RedisPublisher(
                self._server.url(port=self.proxy.port),
                options={"durable": self._durable},
                publish_timeout=timedelta(seconds=1),
                hooks=Hooks(),
            )
        )
        return self.opened(self._ours[-1])

    async def stored(self) -> Sequence[Message]:
        found: list[tuple[str, Message]] = []
        with self._server.client() as client:
            for name in client.keys("*"):
                for id, fields in client.xrange(name):
                    flat = [part for pair in fields.items() for part in pair]
                    found.append((id.decode(), message_of(name.decode(), flat)))
        return [message for _, message in sorted(found, key=lambda one: tuple(map(int, one[0].split("-"))))]

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(TOO_LARGE))

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        for publisher in self._ours:
            await publisher._meet()  # else the answer to its first question is lost, and it never sends
        await super().lose_answers(which)

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        await publish_and_die(self._server.url(), messages)

    async def close(self) -> None:
        await super().close()
        self.proxy.close()


@pytest.mark.parametrize("rule", rules_of(PublisherContract, REDIS_FEATURES))
async def test_the_redis_publisher_keeps_the_rule(rule: str, redis: Redis) -> None:
    await check(PublisherContract, rule, RedisPublisherBench(redis))


@pytest.mark.parametrize("rule", rules_of(PublisherContract, REDIS_FEATURES))
@pytest.mark.parametrize("redis", ["valkey"], indirect=True)
async def test_the_redis_publisher_keeps_the_rule_when_it_waits_for_the_disk(rule: str, redis: Redis) -> None:
    await check(PublisherContract, rule, RedisPublisherBench(redis, durable=True))


@pytest.mark.parametrize("rule", rules_of(RelayContract, REDIS_FEATURES))
async def test_a_relay_over_redis_keeps_the_rule(rule: str, redis: Redis) -> None:
    await check(RelayContract, rule, RedisPublisherBench(redis))


@pytest.mark.parametrize("rule", rules_that_need(RelayContract, "dies"))
@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_relay_over_a_mortal_redis_keeps_the_rule(
    rule: str, kind: str, own_redis: Callable[..., Redis]
) -> None:
    await check(RelayContract, rule, RedisPublisherBench(own_redis(kind)))
