"""The far end of Kafka keeps the subscriber's contract, on a real broker behind a faulty network."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher, KafkaSubscriber
from pillarbox.core.message import Message
from pillarbox.ports import Subscriber
from pillarbox.testing.contracts.publisher import answers
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.subscriber import SubscriberContract, SubscriberFeatures
from servers.kafka import Kafka
from tests.integration import kafka_topics
from tests.integration.kafka_topics import Topics

SESSION = 1.5
"""Seconds after which a member that says nothing is taken for dead."""
QUICK = {
    "session.timeout.ms": int(SESSION * 1000),
    "heartbeat.interval.ms": 200,
    "topic.metadata.refresh.interval.ms": 500,
}


class KafkaSubscriberBench:
    # That a member has died Kafka notices when its session is over, which is not at once.
    features = SubscriberFeatures(tells_redelivery=True, expels=True, goes_away=True, shares_keys=True)

    def __init__(self, topics: Topics) -> None:
        self._topics, server = topics, topics.server
        self._proxies = server.proxies
        options = KafkaOptions.read(server.url.removeprefix("kafka:"), {})
        self._kafka = KafkaPublisher(options, publish_timeout=timedelta(seconds=10))
        self._publisher = topics.publisher(self._kafka)
        self._opened: list[kafka_topics.Subscriber] = []
        self._known = False

    async def publish(self, messages: Sequence[Message]) -> None:
        if not self._known:
            await asyncio.to_thread(lambda: self._topics.make("orders", "mails", partitions=6))
            self._known = True
        self._publisher.send(messages)
        assert all(outcome.error is None for outcome in await answers(self._publisher, len(messages)))

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        """Let the members take turns between the proxies, so that one can be cut off from the others."""
        way = self._topics.server.proxied(len(self._opened) % len(self._proxies))
        options = KafkaOptions.read(way.removeprefix("kafka:"), QUICK)
        names = [self._topics.full(name) for name in topics]
        ours = KafkaSubscriber(options, consumer=self._topics.full(consumer), topics=names)
        self._opened.append(self._topics.subscriber(ours))
        return self._opened[-1]

    async def kill(self, subscriber: Subscriber) -> None:
        assert isinstance(subscriber, kafka_topics.Subscriber)
        await subscriber.kafka.vanish()

    async def expel(self, subscriber: Subscriber) -> None:
        """Let nothing pass from and to a member until its session is over."""
        assert isinstance(subscriber, kafka_topics.Subscriber)
        proxy = self._proxies[self._opened.index(subscriber) % len(self._proxies)]
        proxy.half_open()
        await asyncio.sleep(SESSION + 0.7)
        proxy.heal()

    async def go_away(self) -> None:
        for proxy in self._proxies:
            proxy.reset()
        await self._until_all_know(away=True)

    async def come_back(self) -> None:
        for proxy in self._proxies:
            proxy.heal()
        await self._until_all_know(away=False)

    async def _until_all_know(self, *, away: bool) -> None:
        """Wait until the clients have found out, which they do in their own time."""

        async def unaware() -> bool:
            await asyncio.sleep(0.02)
            return any((one.kafka._member.away is not None) is not away for one in self._opened)

        async with asyncio.timeout(10):
            while await unaware():
                continue

    async def close(self) -> None:
        for proxy in self._proxies:
            proxy.heal()
        await asyncio.gather(*(one.close() for one in self._opened))
        await self._kafka.close()


@pytest.fixture
def topics(kafka: Kafka) -> Iterator[Topics]:
    yield Topics(kafka)
    for proxy in kafka.proxies:
        proxy.heal()


@pytest.mark.parametrize("rule", rules_of(SubscriberContract, KafkaSubscriberBench.features))
async def test_the_subscriber_of_kafka_keeps_the_rule(rule: str, topics: Topics) -> None:
    await check(SubscriberContract, rule, KafkaSubscriberBench(topics))
