"""What a relay promises over any broker, rule by rule: on the bench of its publisher, with a store in memory.

A publisher that keeps its own contract may still be told to the relay wrongly; here the whole way is gone.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.ports import Query, Record
from pillarbox.relay.relay import Parts, Relay
from pillarbox.settings import RelaySettings, Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.contracts.publisher import PublisherBench
from pillarbox.testing.contracts.rules import needs
from pillarbox.testing.memory import MemoryDatabase, MemoryOutbox
from pillarbox.testing.memory_records import MemoryStore
from pillarbox.wiring import SystemClock

TOPIC = "orders"
BATCH, ORDERS, EVENTS = 100, 50, 1000
LARGEST = 1 << 24
"""Bytes of a payload; some of them are to be too large for the broker."""
SILENCE = 2.0
"""Seconds, longer than a bench's publish timeout."""
LONG = 90.0
"""Seconds after which a rule gives up."""


class Shop:
    """An outbox in memory, a relay over the bench's broker, and what has become of the events."""

    def __init__(self, bench: PublisherBench) -> None:
        self._bench, self._clock = bench, SystemClock()
        self._database = MemoryDatabase(self._clock)
        self._desk = MemoryStore(self._database, "desk")
        self.failures: list[object] = []

    def place(self, *events: Event[Any]) -> None:
        """Add events in one transaction."""
        with self._database.transaction() as transaction:
            MemoryOutbox(max_payload=LARGEST).add(transaction, *events)

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[Relay]:
        """Run a relay meanwhile."""
        settings = Settings(relay=RelaySettings(batch=BATCH))
        store = MemoryStore(self._database, "relay", lease=settings.relay.lease)
        relay = Relay(lambda: Parts(store, self._bench.publisher()), settings, self._clock, Hooks(self._hear))
        async with relay:
            yield relay

    def _hear(self, moment: Moment, facts: Facts) -> None:
        if moment in (Moment.EVENT_RETRYING, Moment.EVENT_DEAD):
            self.failures.append(facts.get("error"))

    async def records(self) -> list[Record]:
        return list(await self._desk.find(Query(limit=2 * EVENTS)))

    async def arrived(self) -> list[tuple[int, int]]:
        """Give order and number of what the broker has of our own events, in its order."""
        return [_numbers(message) for message in await self._bench.stored() if message.body.startswith(b'{"order"')]

    async def until_published(self) -> None:
        """Wait until every event is settled as published."""

        async def done() -> bool:
            return {record.status for record in await self.records()} == {"published"}

        await eventually(done, "everything is published")


def placed(order: int, n: int) -> Event[Any]:
    return Event("Placed", {"order": order, "n": n}, aggregate=("order", order), topic=TOPIC)


def orders(first: int, count: int) -> list[Event[Any]]:
    """Make events whose orders take turns; each order's are numbered on."""
    return [placed(n % ORDERS, n // ORDERS) for n in range(first, first + count)]


def _numbers(message: Message) -> tuple[int, int]:
    body = json.loads(bytes(message.body))
    return body["order"], body["n"]


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + LONG
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.05)


def check_arrivals(arrived: Iterable[tuple[int, int]], events: int, copies: int) -> None:
    """Nothing is missing, the first copies of each order came in order, and there are not too many copies."""
    arrived = list(arrived)
    first = list(dict.fromkeys(arrived))
    assert len(first) == events, f"{events - len(first)} of {events} are lost"
    for order in range(ORDERS):
        numbers = [n for of, n in first if of == order]
        assert numbers == sorted(numbers), f"order {order} came in the order {numbers}"
    assert len(arrived) - len(first) <= copies, f"{len(arrived) - len(first)} copies where {copies} are allowed"


class RelayContract:
    """The rules."""

    async def test_everything_arrives_once_and_in_order(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        shop.place(*orders(0, EVENTS))
        async with shop.relay():
            await shop.until_published()
        check_arrivals(await shop.arrived(), EVENTS, copies=0)

    @needs("loses_answers")
    async def test_acknowledgements_that_are_lost_make_copies_and_lose_nothing(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        shop.place(*orders(0, EVENTS // 2))
        async with shop.relay():
            await shop.until_published()
            await bench.lose_answers(None)
            shop.place(*orders(EVENTS // 2, EVENTS // 2))
            await asyncio.sleep(SILENCE)
            await bench.come_back()
            await shop.until_published()
        # What was in flight when it fell silent, and again for each try until it was back.
        arrived = await shop.arrived()
        check_arrivals(arrived, EVENTS, copies=2 * BATCH * max(Counter(arrived).values()))
        assert not shop.failures, "a lost answer is no failure of the event"

    @needs("goes_away")
    async def test_an_outage_loses_nothing_counts_nothing_and_ends_by_itself(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        outages = 3
        async with shop.relay():
            for outage in range(outages):
                shop.place(*orders(outage * 100, 100))
                await asyncio.sleep(0.02 * outage)  # in the middle of something, each time of something else
                await bench.go_away()
                await asyncio.sleep(1.5)
                await bench.come_back()
            await shop.until_published()
        check_arrivals(await shop.arrived(), outages * 100, copies=outages * 2 * BATCH)
        assert not shop.failures, "an outage is no failure of an event"

    @needs("refuses")
    async def test_a_refused_event_is_dead_at_once_and_holds_back_its_aggregate_alone(
        self, bench: PublisherBench
    ) -> None:
        shop = Shop(bench)
        refused = bench.refused(Message(TOPIC, "7", {}, b"x"))
        shop.place(*orders(0, 2 * ORDERS))
        behind = 2 if refused.topic == TOPIC else 0  # a topic that is refused has no followers here
        bad = Event("Bad", bytes(refused.body), aggregate=("order", 7), topic=refused.topic, content_type="text/plain")
        shop.place(bad)
        shop.place(*orders(2 * ORDERS, 2 * ORDERS))
        async with shop.relay():

            async def done() -> bool:
                return Counter(record.status for record in await shop.records()) == +Counter(
                    published=4 * ORDERS - behind, dead=1, blocked=behind
                )

            await eventually(done, "all others are published, and what is behind it is blocked")
        [dead] = [record for record in await shop.records() if record.status == "dead"]
        assert (dead.type, dead.attempts) == ("Bad", 1)
        assert dead.last_error, "the broker's own words"
        assert [n for order, n in await shop.arrived() if order == 7] == [0, 1, 2, 3][: 4 - behind]
