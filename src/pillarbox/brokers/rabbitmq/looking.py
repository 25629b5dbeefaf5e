"""Whether RabbitMQ has somewhere to put events: asked by declaring passively, which makes nothing, and over HTTP."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pillarbox.brokers.rabbitmq.address import SHORT, Address
from pillarbox.brokers.rabbitmq.link import ERRORS, NOT_FOUND, Link, away
from pillarbox.brokers.rabbitmq.management import Untold, ask
from pillarbox.brokers.rabbitmq.routing import described, idle_policies, queues_of
from pillarbox.brokers.rabbitmq.topology import Desk
from pillarbox.facts import RabbitFacts

PATIENCE = 10.0
"""Seconds in which the server must answer."""


class RabbitLooking:
    """Asks for the exchange; or, without one, for the queues that are named as the topics."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def __call__(self, topics: Sequence[str]) -> RabbitFacts:
        try:
            async with asyncio.timeout(PATIENCE):
                facts = await self._ask(topics)
        except TimeoutError as error:
            raise away(self._address.place, TimeoutError(f"no answer in {PATIENCE:g} s")) from error
        except ERRORS as error:
            raise away(self._address.place, error) from error
        return await self._ask_management(facts, topics) if self._address.management else facts

    async def _ask_management(self, facts: RabbitFacts, topics: Sequence[str]) -> RabbitFacts:
        exchange = self._address.exchange
        try:
            host = await ask(self._address)
        except Untold as why:
            return replace(facts, untold=f"the management API at {self._address.management} does not tell: {why}")
        routed = {topic: queues_of(host, exchange, topic) for topic in topics}
        return replace(
            facts,
            unbound=[topic for topic in topics if exchange and not facts.exchange_missing and not routed[topic]],
            queues=described(host, {name for names in routed.values() for name in names}),
            idle_policies=idle_policies(host),
        )

    async def _ask(self, topics: Sequence[str]) -> RabbitFacts:
        exchange, desk = self._address.exchange, Desk(self._address)
        try:
            if exchange:
                there = await desk.asks(lambda link: link.channel.exchange_declare(exchange, passive=True), NOT_FOUND)
                return RabbitFacts(exchange, not there, ())
            missing = [
                topic
                for topic in topics
                if len(topic.encode()) > SHORT or not await desk.asks(partial(_declare, topic), NOT_FOUND)
            ]
            return RabbitFacts("", False, missing)
        finally:
            await desk.close()


async def _declare(queue: str, link: Link) -> None:
    await link.channel.queue_declare(queue, passive=True)
