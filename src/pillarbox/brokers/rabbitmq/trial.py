"""Queues for a run: made as a consumer makes them, at an exchange that is there, and deleted with what is in them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.link import ERRORS, NOT_FOUND, Link, away
from pillarbox.brokers.rabbitmq.looking import PATIENCE, RabbitLooking
from pillarbox.brokers.rabbitmq.topology import Desk, make, queue_of
from pillarbox.errors import ConfigError


class RabbitTrial:
    """Makes and deletes queues, and never an exchange."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def make(self, topics: Sequence[str], consumer: str) -> None:
        # The exchange is asked for over AMQP; the management API has nothing to add, and need not hear the password.
        if (await RabbitLooking(replace(self._address, management=""))(topics)).exchange_missing:
            raise ConfigError(f"broker: there is no exchange {self._address.exchange}: declare it first")
        try:
            async with asyncio.timeout(PATIENCE):
                await make(self._address, {topic: queue_of(self._address, consumer, topic) for topic in topics})
        except ERRORS as error:
            raise away(self._address.place, error) from error

    async def remove(self, topics: Sequence[str], consumer: str) -> None:
        desk = Desk(self._address)
        try:
            async with asyncio.timeout(PATIENCE):
                for topic in topics:
                    await desk.asks(partial(_delete, queue_of(self._address, consumer, topic)), NOT_FOUND)
        except ERRORS as error:
            raise away(self._address.place, error) from error
        finally:
            await desk.close()


async def _delete(queue: str, link: Link) -> None:
    await link.channel.queue_delete(queue)
