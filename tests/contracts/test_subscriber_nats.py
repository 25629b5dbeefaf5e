"""The far end of NATS JetStream keeps the subscriber's contract, on a real server behind a faulty network."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.nats import NatsOptions, NatsPublisher, NatsSubscriber
from pillarbox.core.message import Message
from pillarbox.ports import Subscriber
from pillarbox.testing.contracts.publisher import answers
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.subscriber import SubscriberContract, SubscriberFeatures
from servers.fault_proxy import FaultProxy
from servers.nats import Nats, delete_streams, make_stream

LEASE = 1.0


class NatsSubscriberBench:
    # A key is no part of a subject, so NATS cannot share keys out.
    features = SubscriberFeatures(
        stands_by=True, tells_redelivery=True, notices_death=True, expels=True, goes_away=True
    )

    def __init__(self, server: Nats, proxy: FaultProxy) -> None:
        self.server, self.proxy = server, proxy
        options = NatsOptions.read("nats", f"//127.0.0.1:{server.port}", {})
        self._publisher = NatsPublisher(options, publish_timeout=timedelta(seconds=10))
        self._opened: list[NatsSubscriber] = []
        self._has_stream = False

    async def publish(self, messages: Sequence[Message]) -> None:
        if not self._has_stream:  # made here, so that subscribers meet topics that are not there yet
            await make_stream(self.server.url, "TEST", "orders", "mails")
            self._has_stream = True
        self._publisher.send(messages)
        assert not any(outcome.error for outcome in await answers(self._publisher, len(messages)))

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        options = NatsOptions.read("nats", f"//127.0.0.1:{self.proxy.port}", {"lease": LEASE})
        self._opened.append(NatsSubscriber(options, consumer=consumer, topics=topics))
        return self._opened[-1]

    async def kill(self, subscriber: Subscriber) -> None:
        """Do what the kernel does to a process that dies: close its connection, nothing else."""
        assert isinstance(subscriber, NatsSubscriber)
        if subscriber._beating is not None:
            subscriber._beating.cancel()
        await subscriber._connection.close()

    async def expel(self, subscriber: Subscriber) -> None:
        """Let it hang until its time is over."""
        assert isinstance(subscriber, NatsSubscriber)
        assert subscriber._beating is not None
        subscriber._beating.cancel()
        await asyncio.sleep(LEASE * 1.6)

    async def go_away(self) -> None:
        self.proxy.cut()

    async def come_back(self) -> None:
        self.proxy.heal()

    async def close(self) -> None:
        await self.come_back()
        await self._publisher.close()
        for subscriber in self._opened:
            await subscriber.close()


@pytest.fixture
async def bench(nats_server: Nats) -> AsyncIterator[NatsSubscriberBench]:
    with FaultProxy(nats_server.port) as proxy:
        yield NatsSubscriberBench(nats_server, proxy)
    await delete_streams(nats_server.url)


RULES = rules_of(SubscriberContract, NatsSubscriberBench.features)


@pytest.mark.parametrize("rule", RULES)
async def test_the_subscriber_of_nats_keeps_the_rule(rule: str, bench: NatsSubscriberBench) -> None:
    await check(SubscriberContract, rule, bench)
