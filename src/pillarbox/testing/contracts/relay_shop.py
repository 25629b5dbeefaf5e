"""What the rules of a relay are asked in: a shop with an outbox in memory, and a relay over the bench's broker."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.core.retry import Published
from pillarbox.core.window import Settlement
from pillarbox.ports import Clock, Query, Record
from pillarbox.relay.relay import Parts, Relay
from pillarbox.settings import RelaySettings, Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.contracts.publisher import PublisherBench
from pillarbox.testing.memory import MemoryDatabase, MemoryOutbox
from pillarbox.testing.memory_records import MemoryStore
from pillarbox.wiring import SystemClock

TOPIC = "orders"
BATCH, ORDERS = 100, 50
LARGEST = 1 << 24
"""Bytes of a payload; some of them are to be too large for the broker."""
LONG = 90.0
"""Seconds after which a rule gives up."""


class Shop:
    """An outbox in memory, a relay over the bench's broker, and what has become of the events.

    Time is the system's, or that of the bench if it has a `clock` of its own.
    """

    def __init__(self, bench: PublisherBench) -> None:
        self._bench = bench
        self._clock: Clock = getattr(bench, "clock", None) or SystemClock()
        self._database = MemoryDatabase(self._clock)
        self._desk = MemoryStore(self._database, "desk")
        self.placed = 0
        self._published: set[str] = set()
        self._handed_over = 0
        self.away = False
        self.failures: list[str] = []
        """What was told of events that were tried and not accepted."""

    def place(self, *events: Event[Any]) -> None:
        """Add events in one transaction."""
        self.placed += len(events)
        with self._database.transaction() as transaction:
            MemoryOutbox(max_payload=LARGEST).add(transaction, *events)

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[Relay]:
        """Run a relay meanwhile."""
        settings = Settings(relay=RelaySettings(batch=BATCH))
        store = _TellingStore(self._database, "relay", lease=settings.relay.lease)
        store.tell = self._count
        relay = Relay(lambda: Parts(store, self._bench.publisher()), settings, self._clock, Hooks(self._hear))
        async with relay:
            yield relay

    def _hear(self, moment: Moment, facts: Facts) -> None:
        if moment in (Moment.EVENT_RETRYING, Moment.EVENT_DEAD):
            self.failures.append(f"{moment}: {facts.get('error')}")
        elif moment in (Moment.BROKER_AWAY, Moment.BROKER_BACK):
            self.away = moment is Moment.BROKER_AWAY
        elif moment is Moment.BEFORE_SEND:
            self._handed_over += cast(int, facts["count"])

    def _count(self, settlements: Sequence[Settlement[Entry]]) -> None:
        self._published.update(entry.event_id for entry, verdict in settlements if isinstance(verdict, Published))

    @property
    def published(self) -> int:
        """How many events are settled as published; one that went back and out again counts once."""
        return len(self._published)

    @property
    def tried_again(self) -> int:
        """How often an event was handed over that had been before: no other way may a copy come about."""
        return self._handed_over - self.placed

    async def records(self) -> list[Record]:
        return list(await self._desk.find(Query(limit=self.placed)))

    async def arrived(self) -> list[tuple[int, int]]:
        """Give order and number of what the broker has of our own events, in its order."""
        return [_numbers(message) for message in await self._bench.stored() if message.body.startswith(b'{"order"')]

    async def until_some_are_published(self, count: int) -> None:
        """Wait until so many events are settled as published: the relay is in the middle of the others."""
        await eventually(lambda: self.published >= count, f"{count} events are published", every=0.001)

    async def until_away(self) -> None:
        """Wait until the relay has noticed that the broker is away."""
        await eventually(lambda: self.away, "the relay notices that the broker is away")

    async def until_published(self, seconds: float | None = None) -> None:
        """Wait until every event is settled as published."""

        await eventually(lambda: self.published >= self.placed, "everything is published", seconds)
        assert {record.status for record in await self.records()} == {"published"}


class _TellingStore(MemoryStore):
    """Tells what was settled."""

    tell: Callable[[Sequence[Settlement[Entry]]], None]

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await super().settle(settlements)
        self.tell(settlements)


def placed(order: int, n: int) -> Event[Any]:
    return Event("Placed", {"order": order, "n": n}, aggregate=("order", order), topic=TOPIC)


def orders(first: int, count: int) -> list[Event[Any]]:
    """Make events whose orders take turns; each order's are numbered on."""
    return [placed(n % ORDERS, n // ORDERS) for n in range(first, first + count)]


def _numbers(message: Message) -> tuple[int, int]:
    body = json.loads(bytes(message.body))
    return body["order"], body["n"]


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float | None = None, *, every: float = 0.05
) -> None:
    """Look until something is so; the deadline only ends a rule that is broken."""
    deadline = asyncio.get_running_loop().time() + (seconds or LONG)
    while not (found if isinstance(found := condition(), bool) else await found):
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(every)


def check_arrivals(arrived: Iterable[tuple[int, int]], events: int, copies: int) -> None:
    """Nothing is missing, the first copies of each order came in order, and there are not too many copies."""
    arrived = list(arrived)
    first = list(dict.fromkeys(arrived))
    assert len(first) == events, f"{events - len(first)} of {events} are lost"
    check_prefixes(first)
    assert len(arrived) - len(first) <= copies, f"{len(arrived) - len(first)} copies where {copies} are allowed"


def check_prefixes(arrived: Iterable[tuple[int, int]]) -> None:
    """Of each order the broker has the first events, none is left out, and they came in order."""
    first = list(dict.fromkeys(arrived))
    for order in {order for order, _ in first}:
        numbers = [n for of, n in first if of == order]
        assert numbers == list(range(len(numbers))), f"order {order} came in the order {numbers}"


def memory_in_use() -> int:
    """Give how many bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
