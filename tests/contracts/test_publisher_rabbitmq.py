"""RabbitMQ's near end keeps the publisher's contract."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.rabbitmq import Address, RabbitPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of
from servers.confirm_loser import ConfirmLoser
from servers.fault_proxy import FaultProxy
from servers.rabbitmq import RabbitMQ
from tests.contracts.rabbitmq_bench import EXCHANGE, stored_in


class RabbitPublisherBench:
    features = PublisherFeatures(
        durable=True,
        refuses=True,
        goes_away=True,
        goes_away_midway=True,
        falls_silent=True,
        loses_answers=True,
        loses_single_answers=True,
    )

    def __init__(self, server: RabbitMQ, vhost: str, loser: ConfirmLoser, proxy: FaultProxy) -> None:
        self._server, self._vhost, self._loser, self._proxy = server, vhost, loser, proxy
        self._opened: list[RabbitPublisher] = []
        server.declare_exchange(vhost, EXCHANGE)
        for topic in ("orders", "mails"):
            server.declare_queue(vhost, topic)
            server.bind(vhost, EXCHANGE, topic, topic)

    def _url(self, port: int) -> str:
        return f"{self._server.url(self._vhost, port=port)}?exchange={EXCHANGE}"

    def publisher(self) -> Publisher:
        address = Address.parse(self._url(self._proxy.port))
        self._opened.append(RabbitPublisher(address, publish_timeout=timedelta(seconds=1)))
        return self._opened[-1]

    async def stored(self) -> Sequence[Message]:
        return [
            message
            for topic in ("orders", "mails")
            for message in await asyncio.to_thread(stored_in, self._server, self._vhost, topic)
        ]

    def refused(self, message: Message) -> Message:
        return message._replace(topic="nowhere")

    async def go_away(self) -> None:
        self._proxy.cut()

    async def go_away_midway(self) -> None:
        self._proxy.drop_after(20_000)

    async def fall_silent(self) -> None:
        self._proxy.half_open()

    async def lose_answers(self, count: int | None) -> None:
        if count is None:
            self._proxy.lose_answers()
        else:
            self._loser.lose(range(count))

    async def come_back(self) -> None:
        self._proxy.heal()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        sent = json.dumps([[*message[:3], message.body.decode(), message.ticket] for message in messages])
        url = self._url(self._server.port)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PUBLISH_AND_DIE, url, sent)
        assert await process.wait() == -signal.SIGKILL

    async def close(self) -> None:
        await self.come_back()
        for publisher in self._opened:
            await publisher.close()


PUBLISH_AND_DIE = """
import asyncio, json, os, signal, sys
from datetime import timedelta
from pillarbox.brokers.rabbitmq import Address, RabbitPublisher
from pillarbox.core.message import Message

async def main():
    publisher = RabbitPublisher(Address.parse(sys.argv[1]), publish_timeout=timedelta(seconds=10))
    messages = [Message(t, k, h, b.encode(), n) for t, k, h, b, n in json.loads(sys.argv[2])]
    publisher.send(messages)
    waiting = len(messages)
    while waiting:
        waiting -= sum(outcome.error is None for outcome in await publisher.outcomes())
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("rule", rules_of(PublisherContract, RabbitPublisherBench.features))
async def test_the_rabbitmq_publisher_keeps_the_rule(rule: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    async with ConfirmLoser(rabbitmq.port) as loser:
        with FaultProxy(loser.port) as proxy:
            await check(PublisherContract, rule, RabbitPublisherBench(rabbitmq, vhost, loser, proxy))


@pytest.mark.parametrize("rule", rules_of(RelayContract, RabbitPublisherBench.features))
async def test_a_relay_over_rabbitmq_keeps_the_rule(rule: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    async with ConfirmLoser(rabbitmq.port) as loser:
        with FaultProxy(loser.port) as proxy:
            await check(RelayContract, rule, RabbitPublisherBench(rabbitmq, vhost, loser, proxy))
