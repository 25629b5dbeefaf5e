"""What the rules of a Subscriber are asked on: a bench, its features, and how to receive from it."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Protocol

from pillarbox.core.message import Delivery, Message
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Subscriber
from pillarbox.testing.contracts.publisher import batch, bodies
from pillarbox.testing.contracts.rules import Bench

LONG = 20.0
"""Seconds after which a rule gives up."""
QUIET = 0.3
"""Seconds in which something that must not come would have come."""


@dataclass(frozen=True, slots=True)
class SubscriberFeatures:
    """What a broker can do, or can be made to do on a bench."""

    shares_keys: bool = False
    """Several members of a group have a topic's keys among them."""
    stands_by: bool = False
    """One member of a group has a topic at a time; the others stand by and take over."""
    tells_redelivery: bool = False
    """It marks what comes again."""
    notices_death: bool = False
    """Others take over at once when a member dies."""
    expels: bool = False
    """A living member can be taken for dead on the bench, as one that hangs."""
    goes_away: bool = False


class SubscriberBench(Bench, Protocol):
    """A broker on the bench."""

    features: SubscriberFeatures

    async def publish(self, messages: Sequence[Message]) -> None:
        """Put messages into the broker; returns when it has them."""

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        """Open a member of a group."""

    async def kill(self, subscriber: Subscriber) -> None:
        """Let a member die without a word."""

    async def expel(self, subscriber: Subscriber) -> None:
        """Let the others take a living member for dead."""

    async def go_away(self) -> None: ...
    async def come_back(self) -> None: ...


async def receive(subscriber: Subscriber, count: int, room: int = 100) -> list[Delivery]:
    """Wait for `count` deliveries, acknowledging none."""
    received: list[Delivery] = []
    async with asyncio.timeout(LONG):
        while len(received) < count:
            received += await subscriber.deliveries(min(room, count - len(received)), 1.0)
    return received


async def work_together(
    members: Sequence[Subscriber], count: int, *, acknowledge: bool = True
) -> list[tuple[Subscriber, Delivery]]:
    """Let members receive in turn until `count` deliveries have come; say who got what, in order."""
    received: list[tuple[Subscriber, Delivery]] = []
    async with asyncio.timeout(LONG):
        while len(received) < count:
            for member in members:
                deliveries = await member.deliveries(7, 0.01)
                received += [(member, delivery) for delivery in deliveries]
                if acknowledge:
                    await member.acknowledge(deliveries)
    return received


async def settle_down(bench: SubscriberBench, members: Sequence[Subscriber]) -> None:
    """Let members work until each of them has its share of the keys."""
    async with asyncio.timeout(LONG):
        first = 1
        while True:
            await bench.publish(batch(ascii_letters, first=first, topic="orders"))
            received = await work_together(members, len(ascii_letters))
            if {id(member) for member, _ in received} == {id(member) for member in members}:
                return
            first += len(ascii_letters)


def texts(deliveries: Iterable[Delivery], key: str | None = None) -> list[bytes]:
    """List bodies, of one key or of all."""
    return bodies((delivery.message for delivery in deliveries), key)


async def is_away(call: Awaitable[object]) -> bool:
    try:
        await call
    except BrokerUnavailable:
        return True
    return False
