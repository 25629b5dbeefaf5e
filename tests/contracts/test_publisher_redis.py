"""The near end of Redis Streams keeps the publisher's contract, on Redis and on Valkey, through a fault proxy."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.redis import RedisPublisher
from pillarbox.brokers.redis.entries import message_of
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of
from servers.fault_proxy import FaultProxy
from servers.redis import Redis

TOO_LARGE = (1 << 20) + 1


class RedisPublisherBench:
    # One answer tells of the whole transaction, so a single one cannot be lost.
    features = PublisherFeatures(
        prefix_safe=True,
        durable=True,
        refuses=True,
        goes_away=True,
        goes_away_midway=True,
        falls_silent=True,
        loses_answers=True,
    )

    def __init__(self, server: Redis, *, durable: bool = False) -> None:
        self._server, self._durable = server, durable
        self._proxy = FaultProxy(server.port)
        self._proxy.start()
        self._opened: list[RedisPublisher] = []

    def publisher(self) -> Publisher:
        self._opened.append(
            RedisPublisher(
                self._server.url(port=self._proxy.port),
                options={"durable": self._durable},
                publish_timeout=timedelta(seconds=1),
                hooks=Hooks(),
            )
        )
        return self._opened[-1]

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

    async def go_away(self) -> None:
        self._proxy.cut()

    async def go_away_midway(self) -> None:
        self._proxy.drop_after(20_000)

    async def fall_silent(self) -> None:
        self._proxy.half_open()

    async def lose_answers(self, count: int | None) -> None:
        assert count is None
        for publisher in self._opened:
            await publisher._meet()  # else the answer to its first question is lost, and it never sends
        self._proxy.lose_answers()

    async def come_back(self) -> None:
        self._proxy.heal()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        sent = json.dumps([[*message[:3], message.body.decode(), message.ticket] for message in messages])
        url = self._server.url()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PUBLISH_AND_DIE, url, sent)
        assert await process.wait() == -signal.SIGKILL

    async def close(self) -> None:
        for publisher in self._opened:
            await publisher.close()
        self._proxy.close()


PUBLISH_AND_DIE = """
import asyncio, json, os, signal, sys
from datetime import timedelta
from pillarbox.brokers.redis import RedisPublisher
from pillarbox.core.message import Message
from pillarbox.telemetry.hooks import Hooks

async def main():
    publisher = RedisPublisher(sys.argv[1], publish_timeout=timedelta(seconds=10), hooks=Hooks())
    messages = [Message(t, k, h, b.encode(), n) for t, k, h, b, n in json.loads(sys.argv[2])]
    publisher.send(messages)
    waiting = len(messages)
    while waiting:
        waiting -= sum(outcome.error is None for outcome in await publisher.outcomes())
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("rule", rules_of(PublisherContract, RedisPublisherBench.features))
async def test_the_redis_publisher_keeps_the_rule(rule: str, redis: Redis) -> None:
    await check(PublisherContract, rule, RedisPublisherBench(redis))


@pytest.mark.parametrize("rule", rules_of(PublisherContract, RedisPublisherBench.features))
@pytest.mark.parametrize("redis", ["valkey"], indirect=True)
async def test_the_redis_publisher_keeps_the_rule_when_it_waits_for_the_disk(rule: str, redis: Redis) -> None:
    await check(PublisherContract, rule, RedisPublisherBench(redis, durable=True))


@pytest.mark.parametrize("rule", rules_of(RelayContract, RedisPublisherBench.features))
async def test_a_relay_over_redis_keeps_the_rule(rule: str, redis: Redis) -> None:
    await check(RelayContract, rule, RedisPublisherBench(redis))
