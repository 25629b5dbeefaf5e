"""RabbitMQ's far end keeps the subscriber's contract, but for the rules that need several members at work at once."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from string import ascii_letters

import pytest

from pillarbox.brokers.rabbitmq import Address, RabbitPublisher, RabbitSubscriber
from pillarbox.core.message import Message
from pillarbox.ports import Subscriber
from pillarbox.testing.contracts.publisher import answers, batch
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.subscriber import (
    QUIET,
    SubscriberContract,
    SubscriberFeatures,
    receive,
    texts,
    work_together,
)
from servers.fault_proxy import FaultProxy
from servers.rabbitmq import RabbitMQ
from tests.contracts.rabbitmq_bench import EXCHANGE


class RabbitSubscriberBench:
    # A queue keeps its order towards one reader only, so one member is active and the others stand by; what that means
    # is asked below.
    features = SubscriberFeatures(tells_redelivery=True, notices_death=True, expels=True, goes_away=True)

    def __init__(self, server: RabbitMQ, vhost: str, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._through = Address.parse(f"{server.url(vhost, port=proxy.port)}?exchange={EXCHANGE}")
        self._opened: list[RabbitSubscriber] = []
        direct = Address.parse(f"{server.url(vhost)}?exchange={EXCHANGE}")
        self._publisher = RabbitPublisher(direct, publish_timeout=timedelta(seconds=10))
        server.declare_exchange(vhost, EXCHANGE)
        # As at a deployment: what is published before a queue is there does not wait for it.
        for consumer, topic in (("billing", "orders"), ("billing", "mails"), ("shipping", "orders")):
            server.declare_queue(vhost, f"{consumer}.{topic}", **{"x-single-active-consumer": True})
            server.bind(vhost, EXCHANGE, f"{consumer}.{topic}", topic)

    async def publish(self, messages: Sequence[Message]) -> None:
        self._publisher.send(messages)
        assert not any(outcome.error for outcome in await answers(self._publisher, len(messages)))

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        self._opened.append(RabbitSubscriber(self._through, consumer=consumer, topics=topics))
        return self._opened[-1]

    async def kill(self, subscriber: Subscriber) -> None:
        """Do what the kernel does to a process that dies: close its sockets, nothing else."""
        assert isinstance(subscriber, RabbitSubscriber)
        if subscriber._reception is not None:
            subscriber._reception.link.abort()
        subscriber._closed = True

    async def expel(self, subscriber: Subscriber) -> None:
        """Break its connection, as the server does with one whose heartbeats do not come."""
        assert isinstance(subscriber, RabbitSubscriber)
        assert subscriber._reception is not None
        subscriber._reception.link.abort()

    async def go_away(self) -> None:
        self._proxy.cut()

    async def come_back(self) -> None:
        self._proxy.heal()

    async def close(self) -> None:
        await self.come_back()
        await self._publisher.close()
        for subscriber in self._opened:
            await subscriber.close()


RULES = rules_of(SubscriberContract, RabbitSubscriberBench.features)


@pytest.mark.parametrize("rule", RULES)
async def test_the_rabbitmq_subscriber_keeps_the_rule(rule: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    with FaultProxy(rabbitmq.port) as proxy:
        await check(SubscriberContract, rule, RabbitSubscriberBench(rabbitmq, vhost, proxy))


class OneActiveMember:
    """What holds in place of sharing."""

    async def test_one_member_gets_everything_and_the_others_nothing(self, bench: RabbitSubscriberBench) -> None:
        members = [bench.subscriber("billing", ["orders"]) for _ in range(3)]
        for member in members:
            await member.deliveries(1, 0.0)
        await bench.publish(batch(ascii_letters))
        received = await work_together(members, len(ascii_letters))
        assert {id(member) for member, _ in received} == {id(members[0])}
        assert len({bytes(delivery.message.body) for _, delivery in received}) == len(received)
        assert not any([await member.deliveries(10, QUIET) for member in members])

    async def test_another_takes_over_at_once_when_the_active_one_dies(self, bench: RabbitSubscriberBench) -> None:
        first, second = await self._busy_and_standing_by(bench)
        await bench.kill(first)
        await self._goes_on_in_order(second)

    async def test_another_takes_over_at_once_when_the_active_one_leaves(self, bench: RabbitSubscriberBench) -> None:
        first, second = await self._busy_and_standing_by(bench)
        await first.close()
        await self._goes_on_in_order(second)

    async def test_a_member_that_was_taken_for_dead_stands_by(self, bench: RabbitSubscriberBench) -> None:
        first, second = await self._busy_and_standing_by(bench)
        await bench.expel(first)
        await self._goes_on_in_order(second)
        assert not await first.deliveries(10, QUIET)
        await second.close()
        # What it was given before is still with it.
        assert texts(await receive(first, 3)) == [b"a6", b"a7", b"a8"]

    async def _busy_and_standing_by(self, bench: RabbitSubscriberBench) -> tuple[Subscriber, Subscriber]:
        first, second = [bench.subscriber("billing", ["orders"]) for _ in range(2)]
        for member in (first, second):
            await member.deliveries(1, 0.0)
        await bench.publish(batch("aaaaaaaa"))
        await first.acknowledge(await receive(first, 2))
        await receive(first, 3)
        return first, second

    async def _goes_on_in_order(self, second: Subscriber) -> None:
        async with asyncio.timeout(5):
            received = await receive(second, 6)
        assert texts(received) == [f"a{n}".encode() for n in range(3, 9)]
        assert all(delivery.redelivered for delivery in received[:3])


@pytest.mark.parametrize("rule", rules_of(OneActiveMember, RabbitSubscriberBench.features))
async def test_members_stand_by_for_one_that_is_active(rule: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    with FaultProxy(rabbitmq.port) as proxy:
        await check(OneActiveMember, rule, RabbitSubscriberBench(rabbitmq, vhost, proxy))
