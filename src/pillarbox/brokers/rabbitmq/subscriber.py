"""RabbitMQ's far end: a durable queue per consumer and topic, one active member, acknowledged after the commit.

A queue keeps its order only towards one reader: with several, one handles the next while another still has the one
before. So the queues are declared with a single active consumer; other members stand by and take over at once. What
the active one had not acknowledged goes back to where it was in the queue, before the next one gets anything.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.frames import ack, read
from pillarbox.brokers.rabbitmq.link import ERRORS, Link, away
from pillarbox.brokers.rabbitmq.topology import make, queue_of
from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable

CONNECT = 10.0
"""Seconds to connect and to make the queues."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a delivery comes from: its number holds on one link only."""

    reception: "Reception"
    tag: int


class Reception:
    """Listens to one link: what came and was not given out, and what was not acknowledged."""

    def __init__(self, address: Address) -> None:
        self.link = Link(address, self, confirms=False)
        self.came: deque[Delivery] = deque()
        self.news = asyncio.Event()
        self.error: BaseException | None = None
        self.over = False
        self._acknowledged: set[int] = set()
        self._next = 1

    def delivered(self, tag: int, redelivered: bool, topic: str, properties: Any, body: bytes) -> None:
        message, attempt = read(topic, properties.headers or {}, properties.content_type, body)
        self.came.append(Delivery(message, Place(self, tag), redelivered, attempt))
        self.news.set()

    def lost(self, link: Link, error: BaseException | None) -> None:
        self.error, self.over = error, True
        self.news.set()

    def confirmed(self, tag: int, multiple: bool, accepted: bool) -> None:
        """Nothing is published here."""

    def returned(self, message_id: str, topic: str, words: str) -> None:
        """Nothing is published here."""

    def acknowledgements(self, tags: Sequence[int]) -> bytes:
        """Write frames for the tags: one for an unbroken run from the oldest, one each for what lies behind a gap."""
        new = {tag for tag in tags if tag >= self._next} - self._acknowledged
        self._acknowledged |= new
        up_to = 0
        while self._next in self._acknowledged:
            self._acknowledged.remove(self._next)
            # The server must not have heard of this very number before.
            up_to = self._next if self._next in new else up_to
            self._next += 1
        frames = [ack(up_to, multiple=True)] if up_to else []
        return b"".join(frames + [ack(tag, multiple=False) for tag in sorted(new) if tag > up_to])


class Given:
    """What was given out and not acknowledged. Over a new link the server brings it again: it is with us already."""

    def __init__(self) -> None:
        self._deliveries: dict[tuple[str, bytes], list[Delivery]] = {}

    def add(self, delivery: Delivery) -> None:
        self._deliveries.setdefault(_mark(delivery), []).append(delivery)

    def remove(self, delivery: Delivery) -> None:
        alike = self._deliveries.get(_mark(delivery), [])
        alike[:] = [one for one in alike if one is not delivery]
        if not alike:
            self._deliveries.pop(_mark(delivery), None)

    def adopts(self, again: Delivery) -> bool:
        """Tell whether a delivery is one that we have; if so, that one is acknowledged by its new number."""
        for one in self._deliveries.get(_mark(again), ()):
            if one.place.reception is not again.place.reception and one.message == again.message:
                one.place.reception, one.place.tag = again.place.reception, again.place.tag
                return True
        return False


def _mark(delivery: Delivery) -> tuple[str, bytes]:
    return delivery.message.topic, delivery.message.body


class RabbitSubscriber:
    """One member of a consumer. Makes what is missing: the exchange, the queues and their bindings."""

    def __init__(self, address: Address, *, consumer: str, topics: Sequence[str]) -> None:
        self._address, self._topics = address, tuple(dict.fromkeys(topics))
        self._queues = {topic: queue_of(address, consumer, topic) for topic in self._topics}
        self._reception: Reception | None = None
        self._given = Given()
        self._closed = False

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        reception = await self._receiving()
        deliveries: list[Delivery] = []
        try:
            async with asyncio.timeout(patience):
                while not (deliveries := self._next(reception, room)) and not reception.over and room > 0:
                    reception.news.clear()
                    await reception.news.wait()
        except TimeoutError:
            pass  # nothing has come
        if reception.over and not deliveries:
            await self._part(reception)
            raise away(self._address.place, reception.error)
        return deliveries

    def _next(self, reception: Reception, room: int) -> list[Delivery]:
        """Take what has come, but for what was given out before the link was lost."""
        deliveries: list[Delivery] = []
        while reception.came and len(deliveries) < room:
            delivery = reception.came.popleft()
            if not (delivery.redelivered and self._given.adopts(delivery)):
                self._given.add(delivery)
                deliveries.append(delivery)
        return deliveries

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        reception = await self._receiving()
        # What came over another link and did not come again has gone to another member.
        tags = [delivery.place.tag for delivery in deliveries if delivery.place.reception is reception]
        if frames := reception.acknowledgements(tags):
            try:
                await reception.link.write(frames)
            except ERRORS as error:
                await self._part(reception)
                raise away(self._address.place, error) from error
        for delivery in deliveries:
            self._given.remove(delivery)

    async def close(self) -> None:
        self._closed = True
        if self._reception is not None:
            reception, self._reception = self._reception, None
            # The whole connection: a consumer that is only cancelled keeps what it has, and others would overtake.
            await reception.link.close()

    async def _receiving(self) -> Reception:
        """Give a reception that lives; one that was lost meanwhile is replaced. Raises BrokerUnavailable."""
        if self._closed:
            raise BrokerUnavailable("this subscriber is closed: make a new one")
        if self._reception is not None:
            for _ in range(2):  # until the loop has looked at its sockets
                await asyncio.sleep(0)
            if self._reception.over or not self._reception.link.alive:
                await self._part(self._reception)
        if self._reception is None:
            self._reception = await self._open()
        return self._reception

    async def _part(self, reception: Reception) -> None:
        """Forget a link that is lost, with what came over it and was not given out: it comes again."""
        self._reception = None
        reception.link.abort()
        await reception.link.close()

    async def _open(self) -> Reception:
        try:
            async with asyncio.timeout(CONNECT):
                await make(self._address, self._queues)
                reception = Reception(self._address)
                await reception.link.open()
                try:
                    await self._consume(reception)
                except BaseException:
                    await reception.link.close()
                    raise
        except TimeoutError as error:
            raise away(self._address.place, TimeoutError(f"no connection in {CONNECT:g} s")) from error
        except ERRORS as error:
            raise away(self._address.place, error) from error
        return reception

    async def _consume(self, reception: Reception) -> None:
        channel = reception.link.channel
        channel.on_consumer_cancel_callbacks.add(lambda _: reception.lost(reception.link, None))
        await channel.basic_qos(prefetch_count=self._address.prefetch)
        for queue in self._queues.values():
            await channel.basic_consume(queue, _nobody)


async def _nobody(message: Any) -> None:
    """What comes goes to the link's listener instead."""
