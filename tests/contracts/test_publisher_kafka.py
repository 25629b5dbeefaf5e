"""The near end of Kafka keeps the publisher's contract, on a real broker behind a faulty network."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of, rules_that_need
from servers.kafka import Kafka
from tests.conftest import installed
from tests.contracts.proxied_bench import FEATURES, ProxiedBench
from tests.contracts.publish_and_die import publish_and_die
from tests.integration.kafka_topics import Topics

LIMIT = 300_000
WARM_UP = {"warm-up": "yes"}
# One answer tells of a whole batch, so a single one cannot be lost.
KAFKA_FEATURES = replace(FEATURES, prefix_safe=True, loses_single_answers=False)


class KafkaPublisherBench(ProxiedBench):
    features = KAFKA_FEATURES

    def __init__(self, topics: Topics) -> None:
        super().__init__(topics.server, topics.server.proxies[0])
        self._topics = topics
        self._ours: list[KafkaPublisher] = []

    def publisher(self) -> Publisher:
        url = self._topics.server.proxied().removeprefix("kafka:")
        options = KafkaOptions.read(url, {"message.max.bytes": LIMIT})
        self._ours.append(KafkaPublisher(options, publish_timeout=timedelta(seconds=1.5)))
        return self.opened(self._topics.publisher(self._ours[-1]))

    async def stored(self) -> Sequence[Message]:
        return [message for message in await asyncio.to_thread(self._topics.stored) if message.headers != WARM_UP]

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(LIMIT + 1))

    async def go_away(self) -> None:
        self.proxy.reset()  # a client that comes again at once must find the door open, or closing it hits him halfway

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        for publisher in self._ours:  # one that is at work has nothing left to ask but whether it is stored
            publisher.send([Message(self._topics.full("orders"), None, WARM_UP, b"", -1)])
            await publisher.outcomes()
        await super().lose_answers(which)

    async def start_again(self) -> None:
        await asyncio.to_thread(self._topics.server.restart)

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        await publish_and_die(self._topics.server.url, [self._topics.sent(message) for message in messages])


@pytest.fixture
def topics(kafka: Kafka) -> Iterator[Topics]:
    """One partition each, so that Kafka has one order of all."""
    topics = Topics(kafka)
    topics.make("orders", "mails")
    yield topics
    kafka.proxies[0].heal()


@pytest.mark.parametrize("rule", rules_of(PublisherContract, KAFKA_FEATURES))
async def test_the_publisher_of_kafka_keeps_the_rule(rule: str, topics: Topics) -> None:
    await check(PublisherContract, rule, KafkaPublisherBench(topics))


@pytest.mark.parametrize("rule", rules_of(RelayContract, KAFKA_FEATURES))
async def test_a_relay_over_kafka_keeps_the_rule(rule: str, topics: Topics) -> None:
    await check(RelayContract, rule, KafkaPublisherBench(topics))


@pytest.mark.soak
@pytest.mark.parametrize("rule", rules_that_need(RelayContract, "dies"))
async def test_a_relay_over_a_mortal_kafka_keeps_the_rule(rule: str) -> None:
    with installed(Kafka) as server:
        topics = Topics(server)
        topics.make("orders", partitions=3)
        await check(RelayContract, rule, KafkaPublisherBench(topics))
