"""The near end of webhooks keeps the publisher's contract, with a real endpoint behind a faulty network."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from pillarbox.brokers.webhook import WebhookPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of, rules_that_need
from servers.fault_proxy import FaultProxy
from servers.webhook_receiver import LARGEST, WebhookReceiver
from tests.conftest import installed
from tests.contracts.proxied_bench import FEATURES, ProxiedBench
from tests.contracts.publish_and_die import publish_and_die
from tests.integration.webhook_world import SECRET, message_of, options

TIMEOUT = timedelta(seconds=1)
PARALLEL = 8
# With one connection nothing is sent behind a message whose answer is lost.
ONE_FEATURES = replace(FEATURES, loses_answers=False, loses_single_answers=False)
ONE_ORDER_FOR_ALL_KEYS = "test_a_refused_message_does_not_harm_other_keys"
"""It expects one order across keys, which several connections do not have."""


class WebhookBench(ProxiedBench):
    """`connections` is 1, so that all messages have one order, or more."""

    def __init__(self, receiver: WebhookReceiver, proxy: FaultProxy, connections: int) -> None:
        super().__init__(receiver, proxy)
        self.receiver, self.connections = receiver, connections

    def publisher(self) -> Publisher:
        where = options(f"http://127.0.0.1:{self.proxy.port}/hook", connections=self.connections)
        return self.opened(WebhookPublisher(where, publish_timeout=TIMEOUT))

    async def stored(self) -> Sequence[Message]:
        return [message_of(received) for received in self.receiver.received()]

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(LARGEST + 1))

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        if which is None:
            self.proxy.lose_answers()
        else:
            self.receiver.behave({"numbers": list(which), "store": True, "hang": True})

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        table = {"secrets": [SECRET], "allow": ["127.0.0.1"], "connections": self.connections}
        await publish_and_die(self.receiver.url, messages, webhooks=table)


@pytest.fixture
def proxy(webhook_receiver: WebhookReceiver) -> Iterator[FaultProxy]:
    with FaultProxy(webhook_receiver.port) as proxy:
        yield proxy


@pytest.mark.parametrize("rule", rules_of(PublisherContract, ONE_FEATURES))
async def test_the_publisher_of_webhooks_keeps_the_rule(
    rule: str, webhook_receiver: WebhookReceiver, proxy: FaultProxy
) -> None:
    await check(PublisherContract, rule, WebhookBench(webhook_receiver, proxy, 1))


@pytest.mark.parametrize(
    "rule", [rule for rule in rules_of(PublisherContract, FEATURES) if rule != ONE_ORDER_FOR_ALL_KEYS]
)
async def test_with_many_connections_it_keeps_the_rule(
    rule: str, webhook_receiver: WebhookReceiver, proxy: FaultProxy
) -> None:
    await check(PublisherContract, rule, WebhookBench(webhook_receiver, proxy, PARALLEL))


@pytest.mark.parametrize("rule", rules_of(RelayContract, FEATURES))
async def test_a_relay_over_webhooks_keeps_the_rule(
    rule: str, webhook_receiver: WebhookReceiver, proxy: FaultProxy
) -> None:
    await check(RelayContract, rule, WebhookBench(webhook_receiver, proxy, PARALLEL))


@pytest.mark.soak
@pytest.mark.parametrize("rule", rules_that_need(RelayContract, "dies"))
async def test_a_relay_over_mortal_webhooks_keeps_the_rule(rule: str) -> None:
    with installed(WebhookReceiver) as receiver, FaultProxy(receiver.port) as proxy:
        await check(RelayContract, rule, WebhookBench(receiver, proxy, PARALLEL))
