"""The near end of webhooks keeps the publisher's contract, with a real endpoint behind a faulty network."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from pillarbox.brokers.webhook import WebhookPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.rules import check, rules_of
from servers.fault_proxy import FaultProxy
from servers.webhook_receiver import LARGEST, WebhookReceiver
from tests.integration.webhook_world import message_of, options

TIMEOUT = timedelta(seconds=1)
FEATURES = PublisherFeatures(durable=True, refuses=True, goes_away=True, goes_away_midway=True, falls_silent=True)
# With one connection nothing is sent behind a message whose answer is lost.
PARALLEL_FEATURES = replace(FEATURES, loses_answers=True, loses_single_answers=True)
ONE_ORDER_FOR_ALL_KEYS = "test_a_refused_message_does_not_harm_other_keys"
"""It expects one order across keys, which several connections do not have."""


class WebhookBench:
    """`connections` is 1, so that all messages have one order, or more."""

    def __init__(self, receiver: WebhookReceiver, proxy: FaultProxy, connections: int) -> None:
        self.receiver, self.proxy, self.connections = receiver, proxy, connections
        self.features = FEATURES if connections == 1 else PARALLEL_FEATURES
        self._opened: list[WebhookPublisher] = []

    def publisher(self) -> Publisher:
        where = options(f"http://127.0.0.1:{self.proxy.port}/hook", connections=self.connections)
        self._opened.append(WebhookPublisher(where, publish_timeout=TIMEOUT))
        return self._opened[-1]

    async def stored(self) -> Sequence[Message]:
        return [message_of(received) for received in self.receiver.received()]

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(LARGEST + 1))

    async def go_away(self) -> None:
        self.proxy.cut()

    async def go_away_midway(self) -> None:
        self.proxy.drop_after(20_000)

    async def fall_silent(self) -> None:
        self.proxy.half_open()

    async def lose_answers(self, count: int | None) -> None:
        if count is None:
            self.proxy.lose_answers()
        else:
            self.receiver.behave({"contains": "a1", "times": count, "store": True, "hang": True})

    async def come_back(self) -> None:
        self.proxy.heal()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        sent = json.dumps([[*message[:3], message.body.decode(), message.ticket] for message in messages])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PUBLISH_AND_DIE, self.receiver.url, sent, str(self.connections)
        )
        assert await process.wait() == -signal.SIGKILL

    async def close(self) -> None:
        await self.come_back()
        for publisher in self._opened:
            await publisher.close()


PUBLISH_AND_DIE = """
import asyncio, json, os, signal, sys
from dataclasses import replace
from datetime import timedelta
from pillarbox.brokers.webhook import WebhookPublisher
from pillarbox.core.message import Message
from tests.integration.webhook_world import options

async def main():
    where = options(sys.argv[1], connections=sys.argv[3])
    publisher = WebhookPublisher(where, publish_timeout=timedelta(seconds=10))
    messages = [Message(t, k, h, b.encode(), n) for t, k, h, b, n in json.loads(sys.argv[2])]
    publisher.send(messages)
    waiting = len(messages)
    while waiting:
        waiting -= sum(outcome.error is None for outcome in await publisher.outcomes())
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def proxy(webhook_receiver: WebhookReceiver) -> Iterator[FaultProxy]:
    with FaultProxy(webhook_receiver.port) as proxy:
        yield proxy


@pytest.mark.parametrize("rule", rules_of(PublisherContract, FEATURES))
async def test_the_publisher_of_webhooks_keeps_the_rule(
    rule: str, webhook_receiver: WebhookReceiver, proxy: FaultProxy
) -> None:
    await check(PublisherContract, rule, WebhookBench(webhook_receiver, proxy, 1))


@pytest.mark.parametrize(
    "rule", [rule for rule in rules_of(PublisherContract, PARALLEL_FEATURES) if rule != ONE_ORDER_FOR_ALL_KEYS]
)
async def test_with_many_connections_it_keeps_the_rule(
    rule: str, webhook_receiver: WebhookReceiver, proxy: FaultProxy
) -> None:
    await check(PublisherContract, rule, WebhookBench(webhook_receiver, proxy, 8))
