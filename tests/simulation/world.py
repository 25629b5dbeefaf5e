"""A simulated world: writers, relays, a broker and consumers on one manual clock, with faults by seed at every point.

What is real: relay, chores, pump, read-ahead, window, retry policy, message encoding, the memory store's reading and
settling; the consumer and its programs. What is simulated: time, the network to the broker, and death.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.core.message import REPLAY_HEADER, identity
from pillarbox.core.routing import Line
from pillarbox.errors import PublishError
from pillarbox.ports import Query
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.memory import MemoryDatabase, MemoryOutbox, Transaction
from pillarbox.testing.memory_careful import CRASHED
from pillarbox.testing.memory_records import MemoryStore
from tests.simulation import operator
from tests.simulation.consumers import Billing, ConsumerLife, Copy, SimulatedSubscriber
from tests.simulation.edition import NEWEST, Edition
from tests.simulation.faults import TOPIC_FAILURES, Odds
from tests.simulation.operator import Replayed
from tests.simulation.relays import RelayLife

AGGREGATES = [("order", str(number)) for number in range(6)]


@dataclass
class History:
    """What happened, as the world saw it."""

    committed: dict[str, Line | None] = field(default_factory=dict)
    """Event id → its line (None: not ordered), in the order of commits."""
    rolled_back: set[str] = field(default_factory=set)
    wire: list[str] = field(default_factory=list)
    """Event ids as the broker stored them."""
    dropped: set[str] = field(default_factory=set)
    applied: list[str] = field(default_factory=list)
    """Event ids as their effects were committed."""
    replays: list[Replayed] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    """What replays have sent on purpose, as the broker stored it."""
    applied_again: list[Copy] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What the world itself has found wrong."""


@dataclass(frozen=True)
class Parts:
    """What a world is made of; a test of the simulation itself puts broken ones in."""

    store: type[MemoryStore] = MemoryStore
    subscriber: Callable[[ConsumerLife, Any], Any] = SimulatedSubscriber


class World:
    """One run: `await live()` and then look at `history` and `hits`."""

    topics = ("orders", "mails")

    def __init__(
        self,
        seed: int,
        clock: ManualClock,
        parts: Parts | None = None,
        odds: Odds | None = None,
        *,
        edition: Edition = NEWEST,
    ) -> None:
        self.random, self.clock = random.Random(seed), clock
        self.parts, self.odds = parts or Parts(), odds or Odds()
        self.database, self.broker, self.billing = MemoryDatabase(clock), MemoryBroker(), Billing()
        self.history = History()
        self.hits: Counter[tuple[str, str]] = Counter()
        self.quiet = False
        """From now on no fault strikes."""
        self.prefix_safe = self.random.random() < 0.5
        self.down_until = 0.0
        self.travelling: set[asyncio.Task[None]] = set()
        """Sends on their way to the broker, also of those who are dead by now."""
        self._topics_random = random.Random(f"topics of {seed}")  # so that older seeds stay the worlds they were
        modes = random.Random(f"consumers of {seed}")
        self.stores, self.batch = modes.random() < 0.4, modes.random() < 0.4
        """Consumers store first; their handlers let events share a transaction."""
        self._failing: dict[str, tuple[float, str]] = {}
        self.poison: set[str] = set()
        self._outbox = MemoryOutbox(topic="{event_type}")
        self._locks = {aggregate: asyncio.Lock() for aggregate in AGGREGATES}
        self._processes: dict[str, asyncio.Task[None]] = {}
        self._stopped: set[str] = set()
        self.edition = edition
        sizes = random.Random(f"sizes of {seed}")
        is_long = edition < Edition.OPERATED or sizes.random() < 0.05
        self._seconds, self._pace = (20, 2.0) if is_long else (5, 4.0)
        self.naps = (0.5, 1.5, 5.0) if is_long else (0.5, 1.2, 2.0)
        """How long a process is frozen, or a send on its way: so many leases."""
        self.archive = sizes.choice((timedelta(0), timedelta(hours=1)))
        self._deadly_share = sizes.choice((0, 0, 0, 0.03)) if edition >= Edition.OPERATED else 0
        self.deadly: set[str] = set()
        """Events that kill every relay that is about to send them."""
        self.lives: dict[str, RelayLife | ConsumerLife] = {}

    async def live(self, writers: int = 3) -> None:
        """Let everything happen for a while, then let it become quiet and drain."""
        relays = [f"relay-{number}" for number in range(self.random.choice((1, 2, 2, 3)))]
        consumers = ["consumer-0", "consumer-1"]
        for name in relays:
            self._processes[name] = asyncio.create_task(self._process(name, self._relay))
        for name in consumers:
            self._processes[name] = asyncio.create_task(self._process(name, self._consumer))
        others = [asyncio.create_task(self._write()) for _ in range(writers)]
        others += [asyncio.create_task(self._operate()), asyncio.create_task(self._weather())]
        if self.edition >= Edition.TOPICS_FAIL:
            others.append(asyncio.create_task(self._weather_of_topics()))
        if self.edition >= Edition.OPERATED:
            others.append(asyncio.create_task(operator.replay_now_and_then(self)))
            others.append(asyncio.create_task(operator.restart_now_and_then(self)))
        await asyncio.sleep(self._seconds)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._calm_down()
        await self._stop(relays)
        await self._rest()  # a relay that was frozen may have sent what had been settled or dropped without it
        await self._stop(consumers)
        self._write_down()

    async def _stop(self, names: Sequence[str]) -> None:
        """Stop daemons in peace, and wait for their ends; no others take their places."""
        self._stopped.update(names)
        for name in names:
            self.lives[name].daemon.stop()
        await asyncio.gather(*(self._processes[name] for name in names))

    def _write_down(self) -> None:
        history, stored, applied = self.history, self._stored(), self.billing.applied()
        history.wire, history.copies = [id for id, _ in stored], [copy for copy in stored if copy[1]]
        history.applied = [id for id, replay in applied if replay is None]
        history.applied_again = [copy for copy in applied if copy[1]]
        history.troubles = operator.faults_of(self)

    def _stored(self) -> list[Copy]:
        """Give event and replay of every message that the broker has."""
        return [(identity(message)[0], message.headers.get(REPLAY_HEADER)) for message in self.broker.messages()]

    # Processes, which are started again whenever they die

    def _relay(self, name: str) -> RelayLife:
        return RelayLife(self, name)

    def _consumer(self, name: str) -> ConsumerLife:
        return ConsumerLife(self)

    async def _process(self, name: str, start: Callable[[str], RelayLife | ConsumerLife]) -> None:
        starts = 0
        while name not in self._stopped:
            starts += 1
            life = self.lives[name] = start(f"{name}/{starts}")
            task = asyncio.create_task(life.daemon.run())
            death = asyncio.create_task(life.death.wait())
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            death.cancel()
            if not life.dead:
                task.result()
                continue
            task.cancel()  # its code runs on to its next call, which has no effect
            await asyncio.wait({task})
            await asyncio.sleep(self.random.random() * 2)

    # The end of a run

    async def _calm_down(self) -> None:
        """No more faults; drop what is dead; wait until nothing is left to do, as far as the tables tell."""
        self.quiet, self.down_until = True, 0.0
        self._failing.clear()
        self.database.crash()
        desk = MemoryStore(self.database, "desk")
        for topic in list(self.database.pauses):
            await desk.resume(topic)
        await operator.finish(self)
        await self._rest()

    async def _rest(self) -> None:
        """Wait until nothing is left to do."""
        desk = MemoryStore(self.database, "desk")
        deadline = self.clock.elapsed + 300
        while self.clock.elapsed < deadline:
            await self._drop_dead(desk)
            self.billing.retry_dead()
            stats = await desk.stats()
            waiting = stats.pending or stats.retrying or stats.blocked or stats.delayed or stats.dead
            busy = waiting or self.travelling or self.billing.waiting()
            if not busy and set(self._stored()) == set(self.billing.applied()):
                return
            await asyncio.sleep(1)

    async def _drop_dead(self, desk: MemoryStore) -> None:
        if not any(row.state == "dead" for row in self.database.parked):
            return
        dead = await desk.find(Query(status=("dead",)))
        self.history.dropped.update(record.event_id for record in dead)
        self.hits["careful mode", "convicts"] += sum(record.last_error == CRASHED for record in dead)
        await desk.drop(Query(status=("dead",)))

    # The application

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(self._pace))
            aggregates = sorted(self.random.sample(AGGREGATES, self.random.choice((1, 1, 2))))
            for aggregate in aggregates:
                await self._locks[aggregate].acquire()
            try:
                await self._change(aggregates)
            finally:
                for aggregate in aggregates:
                    self._locks[aggregate].release()

    async def _change(self, aggregates: list[tuple[str, str]]) -> None:
        """Change aggregates under their locks, and add the events after the change."""
        transaction = self.database.begin()
        written: dict[str, Line | None] = {}
        commits = False
        try:
            for aggregate in aggregates * self.random.choice((1, 1, 2)):
                self._add(transaction, aggregate, written)
                await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.3, 2.5)) * self.random.random())
            commits = transaction.open and self.random.random() < 0.85
        finally:
            if commits:
                transaction.commit()
                self.history.committed.update(written)
            else:
                transaction.rollback()
                self.history.rolled_back.update(written)

    def _add(self, transaction: Transaction, aggregate: tuple[str, str], written: dict[str, Line | None]) -> None:
        topic, id = self.random.choice(self.topics), UUID(int=self.random.getrandbits(128), version=4)
        kind = self.random.random()
        later = self.clock.now() + timedelta(seconds=2) if kind < 0.1 else None
        event = Event(topic, 0, id=id, aggregate=None if 0.1 < kind < 0.2 else aggregate, available_at=later)
        self._outbox.add(transaction, event)
        if self.random.random() < 0.02:
            self.poison.add(str(id))
        if self._deadly_share and self.random.random() < self._deadly_share:
            self.deadly.add(str(id))
        ordered = event.aggregate is not None and later is None
        written[str(id)] = (topic, *aggregate) if ordered else None

    # The operator, and the weather at the broker

    async def _operate(self) -> None:
        desk = MemoryStore(self.database, "desk")
        while True:
            await asyncio.sleep(self.random.expovariate(0.5))
            topic = self.random.choice(self.topics)
            action = self.random.choice(("pause", "resume", "resume", "retry", "drop"))
            if action == "pause":
                await desk.pause(topic, "operator", "simulated")
            elif action == "resume":
                await desk.resume(topic)
            elif action == "retry":
                await desk.retry(Query(status=("dead",)))
            else:
                await self._drop_dead(desk)
            self.hits["operator", action] += 1
            if any(life.held for life in self.lives.values()):
                self.hits["while a topic is held", "operator"] += 1

    async def _weather(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(0.15))
            self.down_until = self.clock.elapsed + self.random.choice((0.05, 1, 8))
            self.hits["broker", "outage"] += 1

    async def _weather_of_topics(self) -> None:
        """Let one topic fail while the others go on, in one of several ways, now for a moment, now for long."""
        chance = self._topics_random
        while True:
            await asyncio.sleep(chance.expovariate(0.2))
            how = chance.choice(list(TOPIC_FAILURES))
            self._failing[chance.choice(self.topics)] = (self.clock.elapsed + chance.choice((0.5, 3, 8)), how)
            self.hits["topic", how] += 1

    def topic_failure(self, topic: str) -> PublishError | None:
        """Say how a topic fails now, if it does."""
        until, how = self._failing.get(topic, (0.0, ""))
        return TOPIC_FAILURES[how](f"simulated: the topic {how}") if self.clock.elapsed < until else None
