"""The memory broker: the reference implementation, and the simulator's broker. Read this one first.

A log in memory, with topics, 16 partitions by key, consumer groups and their positions. It lives on one event loop and
knows no time but the loop's. What passes through is written down and read back, so that no live object leaks through.

The faults of real brokers can be asked for: `down`, `latency`, `refuse`, `go_down_after`, `lose_answers`; and, on a
subscriber, `crash` and `expel`.
"""

import asyncio
import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import count
from operator import itemgetter
from typing import NamedTuple

from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.brokers.partitions import (
    PARTITIONS,
    Held,
    Partition,
    Place,
    partition_of,
    read_fairly,
    settle_share,
    share_of,
)
from pillarbox.brokers.sends import Send, Sends
from pillarbox.core.message import Delivery, Message
from pillarbox.errors import BrokerUnavailable, PublishError
from pillarbox.ports import Outcome
from pillarbox.settings.urls import Url

TIMEOUT = timedelta(seconds=10)


class Stored(NamedTuple):
    """A message as it is kept: nothing but text and bytes."""

    topic: str
    key: str | None
    headers: str
    body: bytes

    def message(self) -> Message:
        return Message(self.topic, self.key, json.loads(self.headers), self.body)


@dataclass(slots=True)
class Row:
    """What a group knows of one partition."""

    position: int = 0
    given_to: int = 0
    """The newest id that any member was ever given."""
    owner: "MemorySubscriber | None" = None


@dataclass(slots=True)
class Group:
    """A consumer: its members and its places in the log."""

    members: "dict[int, MemorySubscriber]" = field(default_factory=dict)
    rows: dict[Partition, Row] = field(default_factory=dict)

    def row(self, partition: Partition) -> Row:
        row = self.rows.get(partition)
        if row is None:
            row = self.rows[partition] = Row()
        return row


class MemoryBroker:
    """Topics in memory. `prefix_safe=False` makes a broker that lets a key's later messages pass a failed one."""

    def __init__(self, *, prefix_safe: bool = True, publish_timeout: timedelta = TIMEOUT) -> None:
        self.prefix_safe, self.publish_timeout = prefix_safe, publish_timeout
        self._log: list[Stored] = []
        self._ids: dict[Partition, list[int]] = {}
        self._groups: dict[str, Group] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order of their coming: every run is the same
        self.heal()

    def heal(self) -> None:
        """Be a broker without faults again."""
        self.down = False
        self.latency: Callable[[], float] = lambda: 0.0
        """Seconds until a send arrives; asked once for each."""
        self._down_after: int | None = None
        self._refusals: list[tuple[Callable[[Message], bool], PublishError]] = []
        self._unanswered: set[int] = set()

    def refuse(self, predicate: Callable[[Message], bool], error: PublishError) -> None:
        """Answer with `error` instead of storing every message that `predicate` picks, until `heal`."""
        self._refusals.append((predicate, error))

    def go_down_after(self, count: int) -> None:
        """Go down once `count` more messages are stored, be it in the middle of a send."""
        self._down_after = count

    def lose_answers(self, which: int | Iterable[int]) -> None:
        """Store messages without an answer, for which the publish timeout answers then: the next so many, or those with
        these numbers, the next one being 0."""
        numbers = range(which) if isinstance(which, int) else which
        self._unanswered = {len(self._log) + number for number in numbers}

    def publisher(self) -> "MemoryPublisher":
        """Give a new near end."""
        return MemoryPublisher(self)

    def subscriber(self, consumer: str, topics: Sequence[str]) -> "MemorySubscriber":
        """Give a new member of the group `consumer`."""
        return MemorySubscriber(self, consumer, topics)

    def messages(self, topic: str | None = None) -> list[Message]:
        """List what is stored, of one topic or of all, in order."""
        return [stored.message() for stored in self._log if topic in (None, stored.topic)]

    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        """Store what a send brings, message by message, and answer; an answer that gets lost is left out."""
        outcomes: list[Outcome] = []
        held_back: set[tuple[str, str]] = set()
        for message in messages:
            error = self._judge(message, held_back)
            if error is None:
                self.store(message)
                if len(self._log) - 1 in self._unanswered:
                    continue
            elif self.prefix_safe and message.key is not None:
                held_back.add((message.topic, message.key))
            outcomes.append(Outcome(message.ticket, error))
        self.wake()
        return outcomes

    def _judge(self, message: Message, held_back: Collection[tuple[str, str]]) -> PublishError | None:
        if self._down_after == 0:
            self.down, self._down_after = True, None
        if self.down:
            return BrokerUnavailable("the memory broker is down")
        if message.key is not None and (message.topic, message.key) in held_back:
            return PublishError(f"held back: an earlier message of the key {message.key!r} was not accepted")
        return next((error for picks, error in self._refusals if picks(message)), None)

    def store(self, message: Message) -> None:
        """Append one message to the log."""
        topic, key, headers, body, _ = message
        self._log.append(Stored(topic, key, json.dumps(dict(headers)), bytes(body)))
        self._ids.setdefault(Partition(topic, partition_of(message)), []).append(len(self._log))
        if self._down_after is not None:
            self._down_after -= 1

    def read(self, partition: Partition, after: int, limit: int) -> list[tuple[int, Message]]:
        """Read at most `limit` messages of a partition behind an id, in order."""
        ids = self._ids.get(partition)
        if ids is None or ids[-1] <= after:
            return []
        first = bisect_right(ids, after)
        return [(id, self._log[id - 1].message()) for id in ids[first : first + limit]]

    def group(self, consumer: str) -> Group:
        """Give the group of that name; it begins at the oldest message."""
        return self._groups.setdefault(consumer, Group())

    def wake(self) -> None:
        """Tell those who wait that something has changed."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def changed(self) -> None:
        """Wait until something has changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)


class MemoryPublisher:
    """The near end. Sends arrive one after the other, each after the broker's latency."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._sends = Sends(broker.publish_timeout)
        self._travelling: list[tuple[float, Send]] = []

    @property
    def prefix_safe(self) -> bool:
        return self._broker.prefix_safe

    def send(self, messages: Sequence[Message]) -> None:
        loop = asyncio.get_running_loop()
        arrival = loop.time() + self._broker.latency()
        if self._travelling:  # nothing overtakes on the way
            arrival = max(arrival, self._travelling[-1][0])
        self._travelling.append((arrival, self._sends.begin(messages)))
        loop.call_at(arrival, self._arrive)

    def _arrive(self) -> None:
        # Timers of the same time fire in any order; the sends keep theirs.
        _, send = self._travelling.pop(0)
        # One that nobody waits for any more arrives all the same: that is how copies come about.
        self._sends.answer(send, self._broker.receive(send.messages))

    async def outcomes(self) -> Sequence[Outcome]:
        return await self._sends.outcomes()

    async def close(self) -> None:
        self._sends.fail_all(BrokerUnavailable("closed before the broker answered; it may or may not have arrived"))


class MemorySubscriber:
    """The far end: one member of a group."""

    _numbers = count()

    def __init__(self, broker: MemoryBroker, consumer: str, topics: Sequence[str]) -> None:
        self._broker, self._topics = broker, tuple(dict.fromkeys(topics))
        self._number = next(self._numbers)
        self._group = broker.group(consumer)
        self._held: dict[Partition, Held] = {}
        self._turn = 0
        self._gone = False

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        try:
            async with asyncio.timeout(patience):
                while not (deliveries := self._next(room)) and room > 0:
                    await self._broker.changed()
        except TimeoutError:
            return []
        return deliveries

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check()
        for delivery in deliveries:
            partition, id, epoch = delivery.place
            held = self._held.get(partition)
            if held is not None and held.epoch == epoch:
                held.acknowledge(id)
                self._group.row(partition).position = held.position
        if self._number in self._group.members:
            self._balance()  # a partition that was only waiting for this is free now

    async def close(self) -> None:
        self.crash()

    def crash(self) -> None:
        """Die without a word; what was given out and not acknowledged comes again to others."""
        self._gone = True
        self.expel()

    def expel(self) -> None:
        """Be taken for dead, as brokers do to a member that hangs; its next call joins anew."""
        self._group.members.pop(self._number, None)
        for partition in list(self._held):
            self._release(partition)
        self._broker.wake()

    def _check(self) -> None:
        if self._gone:
            raise BrokerUnavailable("this subscriber is closed: make a new one")
        if self._broker.down:
            raise BrokerUnavailable("the memory broker is down")

    def _next(self, room: int) -> list[Delivery]:
        """Keep to the fair share, then read from the partitions held, in turn."""
        self._check()
        self._join()
        self._balance()
        partitions = [partition for partition, held in self._held.items() if not held.leaving]
        self._turn = (self._turn + 1) % max(1, len(partitions))
        found, _ = read_fairly(partitions[self._turn :] + partitions[: self._turn], room, self._read)
        return [delivery for _, delivery in sorted(found, key=itemgetter(0))]

    def _read(self, partition: Partition, limit: int) -> list[tuple[int, Delivery]]:
        held, row = self._held[partition], self._group.row(partition)
        read = self._broker.read(partition, held.cursor, limit)
        if not read:
            return []
        held.give([id for id, _ in read])
        found = [
            (id, Delivery(message, Place(partition, id, held.epoch), redelivered=id <= row.given_to))
            for id, message in read
        ]
        row.given_to = max(row.given_to, held.cursor)
        return found

    def _join(self) -> None:
        if self._number not in self._group.members:
            self._group.members[self._number] = self
            self._broker.wake()

    def _balance(self) -> None:
        for topic in self._topics:
            members = [number for number, member in self._group.members.items() if topic in member._topics]
            share = share_of(self._number, members)
            for partition in settle_share(self._held, topic, share):
                self._release(partition)
            self._take(topic, share)

    def _take(self, topic: str, share: int) -> None:
        holding = sum(partition.topic == topic for partition in self._held)
        for number in range(PARTITIONS):
            if holding >= share:
                return
            partition = Partition(topic, number)
            row = self._group.row(partition)
            if row.owner is None:
                row.owner = self
                self._held[partition] = Held(row.position, epoch=str(next(self._numbers)))
                holding += 1

    def _release(self, partition: Partition) -> None:
        del self._held[partition]
        self._group.row(partition).owner = None
        self._broker.wake()


def open_publisher(given: Given) -> Publishers:
    return _broker_of(given.url).publisher


def open_subscriber(given: Given) -> Subscribers:
    return _broker_of(given.url).subscriber


@cache
def _broker_of(url: Url) -> MemoryBroker:
    """Give the broker in this process's memory: relay and consumer must meet in the same one."""
    return MemoryBroker()
