"""The near end of Kafka keeps the publisher's contract, on a real broker behind a faulty network."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.rules import check, rules_of
from servers.kafka import Kafka
from tests.integration.kafka_topics import Topics

LIMIT = 100_000
WARM_UP = {"warm-up": "yes"}


class KafkaPublisherBench:
    # One answer tells of a whole batch, so a single one cannot be lost.
    features = PublisherFeatures(
        prefix_safe=True,
        durable=True,
        refuses=True,
        goes_away=True,
        goes_away_midway=True,
        falls_silent=True,
        loses_answers=True,
    )

    def __init__(self, topics: Topics) -> None:
        self._topics, self._proxy = topics, topics.server.proxies[0]
        self._opened: list[KafkaPublisher] = []

    def publisher(self) -> Publisher:
        url = self._topics.server.proxied().removeprefix("kafka:")
        options = KafkaOptions.read(url, {"message.max.bytes": LIMIT})
        self._opened.append(KafkaPublisher(options, publish_timeout=timedelta(seconds=1.5)))
        return self._topics.publisher(self._opened[-1])

    async def stored(self) -> Sequence[Message]:
        return [message for message in await asyncio.to_thread(self._topics.stored) if message.headers != WARM_UP]

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(LIMIT + 1))

    async def go_away(self) -> None:
        self._proxy.reset()  # a client that comes again at once must find the door open, or closing it hits him halfway

    async def go_away_midway(self) -> None:
        self._proxy.drop_after(20_000)

    async def fall_silent(self) -> None:
        self._proxy.half_open()

    async def lose_answers(self, count: int | None) -> None:
        assert count is None
        for publisher in self._opened:  # one that is at work has nothing left to ask but whether it is stored
            publisher.send([Message(self._topics.full("orders"), None, WARM_UP, b"", -1)])
            await publisher.outcomes()
        self._proxy.lose_answers()

    async def come_back(self) -> None:
        self._proxy.heal()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        sent = json.dumps([[*self._topics.sent(m)[:3], m.body.decode(), m.ticket] for m in messages])
        url = self._topics.server.url.removeprefix("kafka:")
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PUBLISH_AND_DIE, url, sent)
        assert await process.wait() == -signal.SIGKILL

    async def close(self) -> None:
        self._proxy.heal()
        for publisher in self._opened:
            await publisher.close()


PUBLISH_AND_DIE = """
import asyncio, json, os, signal, sys
from datetime import timedelta
from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher
from pillarbox.core.message import Message

async def main():
    publisher = KafkaPublisher(KafkaOptions.read(sys.argv[1], {}), publish_timeout=timedelta(seconds=10))
    messages = [Message(t, k, h, b.encode(), n) for t, k, h, b, n in json.loads(sys.argv[2])]
    publisher.send(messages)
    waiting = len(messages)
    while waiting:
        waiting -= sum(outcome.error is None for outcome in await publisher.outcomes())
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def topics(kafka: Kafka) -> Iterator[Topics]:
    """One partition each, so that Kafka has one order of all."""
    topics = Topics(kafka)
    topics.make("orders", "mails")
    yield topics
    kafka.proxies[0].heal()


@pytest.mark.parametrize("rule", rules_of(PublisherContract, KafkaPublisherBench.features))
async def test_the_publisher_of_kafka_keeps_the_rule(rule: str, topics: Topics) -> None:
    await check(PublisherContract, rule, KafkaPublisherBench(topics))
