"""RabbitMQ's near end keeps the publisher's contract, on a real server behind a faulty network."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from pillarbox.brokers.rabbitmq import Address, RabbitPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of, rules_that_need
from servers.confirm_loser import ConfirmLoser
from servers.fault_proxy import FaultProxy
from servers.rabbitmq import LARGEST_MESSAGE, RabbitMQ
from tests.conftest import installed
from tests.contracts.proxied_bench import FEATURES, ProxiedBench
from tests.contracts.publish_and_die import publish_and_die
from tests.contracts.rabbitmq_bench import EXCHANGE, stored_in


class RabbitPublisherBench(ProxiedBench):
    def __init__(self, server: RabbitMQ, vhost: str, loser: ConfirmLoser, proxy: FaultProxy) -> None:
        super().__init__(server, proxy)
        self._server, self._vhost, self._loser = server, vhost, loser
        self._seen: dict[str, list[Message]] = {"orders": [], "mails": []}
        """What was taken off the queues, to be looked at more than once."""
        server.declare_exchange(vhost, EXCHANGE)
        for topic in self._seen:
            server.declare_queue(vhost, topic)
            server.bind(vhost, EXCHANGE, topic, topic)

    def _url(self, port: int) -> str:
        return f"{self._server.url(self._vhost, port=port)}?exchange={EXCHANGE}"

    def publisher(self) -> Publisher:
        address = Address.parse(self._url(self.proxy.port))
        return self.opened(RabbitPublisher(address, publish_timeout=timedelta(seconds=1)))

    async def stored(self) -> Sequence[Message]:
        for topic, seen in self._seen.items():
            seen += await asyncio.to_thread(stored_in, self._server, self._vhost, topic, leave=False)
        return [message for seen in self._seen.values() for message in seen]

    def refused(self, message: Message) -> Message:
        return message._replace(topic="nowhere")

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        if which is None:
            self.proxy.lose_answers()
        else:
            self._loser.lose(which)

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        await publish_and_die(self._url(self._server.port), messages)


class ClosingBench(RabbitPublisherBench):
    """Refuses in the topic's own queue: the server closes the channel, so that others may go twice."""

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(LARGEST_MESSAGE + 1))


@asynccontextmanager
async def bench_of(
    server: RabbitMQ, vhost: str, kind: type[RabbitPublisherBench] = RabbitPublisherBench
) -> AsyncIterator[RabbitPublisherBench]:
    async with ConfirmLoser(server.port) as loser:
        with FaultProxy(loser.port) as proxy:
            yield kind(server, vhost, loser, proxy)


@pytest.mark.parametrize("rule", rules_of(PublisherContract, FEATURES))
async def test_the_rabbitmq_publisher_keeps_the_rule(rule: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    async with bench_of(rabbitmq, vhost) as bench:
        await check(PublisherContract, rule, bench)


@pytest.mark.parametrize("rule", rules_of(RelayContract, FEATURES))
async def test_a_relay_over_rabbitmq_keeps_the_rule(rule: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    async with bench_of(rabbitmq, vhost, ClosingBench) as bench:
        await check(RelayContract, rule, bench)


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("rule", rules_that_need(RelayContract, "dies"))
async def test_a_relay_over_a_mortal_rabbitmq_keeps_the_rule(rule: str) -> None:
    with installed(RabbitMQ) as server:
        server.create_vhost("mortal")
        async with bench_of(server, "mortal") as bench:
            await asyncio.sleep(6)  # a quorum queue that is younger does not survive
            await check(RelayContract, rule, bench)
