"""Whether RabbitMQ has somewhere to put events: asked by declaring passively, which makes nothing."""

import asyncio
from collections.abc import Sequence
from functools import partial

from pillarbox.brokers.rabbitmq.address import SHORT, Address
from pillarbox.brokers.rabbitmq.link import ERRORS, NOT_FOUND, Link, away
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
                return await self._ask(topics)
        except TimeoutError as error:
            raise away(self._address.place, TimeoutError(f"no answer in {PATIENCE:g} s")) from error
        except ERRORS as error:
            raise away(self._address.place, error) from error

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
