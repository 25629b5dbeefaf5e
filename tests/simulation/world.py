"""A simulated world: writers, relays and a broker on one manual clock, with faults by seed at every point.

Everything that is real: relay, chores, pump, read-ahead, window, retry policy, message encoding, the memory store's
reading and settling. What is simulated: time, the network to the broker, and death.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from pillarbox.core.event import Event
from pillarbox.core.message import Message, identity
from pillarbox.core.routing import Topics
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout, StoreUnavailable
from pillarbox.ports import Outcome, Query
from pillarbox.relay.relay import Parts, Relay
from pillarbox.settings import RelaySettings, Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.memory import MemoryDatabase, MemoryOutbox
from pillarbox.testing.memory_records import MemoryStore

LEASE = timedelta(seconds=3)
TOPICS = ("orders", "mails")
AGGREGATES = [("order", str(number)) for number in range(6)]

STORE_POINTS = (
    "take", "taken", "renew", "renewed", "release", "released", "entries", "entries read", "settle", "settled",
)  # fmt: skip
RELAY_MOMENTS = (
    Moment.LANES_TAKEN, Moment.ENTRIES_READ, Moment.BEFORE_SEND, Moment.SENT, Moment.ANSWERED, Moment.SETTLING,
    Moment.SETTLED, Moment.LEASE_RENEWED, Moment.LANES_RELEASED,
)  # fmt: skip
BROKER_POINTS = ("handed over", "stored by broker")


@dataclass
class History:
    """What happened, as the world saw it."""

    committed: dict[str, tuple[str, str, str] | None] = field(default_factory=dict)
    """Event id → its line (None: not ordered), in the order of commits."""
    rolled_back: set[str] = field(default_factory=set)
    wire: list[str] = field(default_factory=list)
    """Event ids as the broker stored them."""
    dropped: set[str] = field(default_factory=set)


@dataclass
class Odds:
    """How often faults strike, per point."""

    crash: float = 0.01
    pause: float = 0.01
    store_error: float = 0.02
    lost_answer: float = 0.02
    lost_lease: float = 0.01


class World:
    """One run: `await live()` and then look at `history` and `hits`."""

    def __init__(self, seed: int, clock: ManualClock, *, relay: type[Relay] = Relay, odds: Odds | None = None) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.odds = odds or Odds()
        self.database = MemoryDatabase(clock)
        self.topics = Topics()
        self.history = History()
        self.hits: Counter[tuple[str, str]] = Counter()
        self.relay_class = relay
        self.quiet = False
        """From now on no fault strikes."""
        self.prefix_safe = self.random.random() < 0.5
        self.down_until = 0.0
        self.poison: set[str] = set()
        self._outbox = MemoryOutbox(topic="{event_type}")
        self._locks = {aggregate: asyncio.Lock() for aggregate in AGGREGATES}
        self._processes = [RelayProcess(self, f"relay-{number}") for number in range(self.random.choice((1, 2, 2, 3)))]

    async def live(self, seconds: float = 20, writers: int = 3) -> None:
        """Let everything happen for a while, then let it become quiet and drain."""
        relays = [asyncio.create_task(process.live()) for process in self._processes]
        others = [asyncio.create_task(self._write()) for _ in range(writers)]
        others += [asyncio.create_task(self._operate()), asyncio.create_task(self._weather())]
        await asyncio.sleep(seconds)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._calm_down()
        for process in self._processes:
            process.stop()
        await asyncio.gather(*relays)

    async def _calm_down(self) -> None:
        """No more faults; drop what is dead; wait until nothing is left to do."""
        self.quiet, self.down_until = True, 0.0
        self.database.crash()
        desk = MemoryStore(self.database, "desk")
        for topic in list(self.database.pauses):
            await desk.resume(topic)
        deadline = self.clock.elapsed + 300
        while self.clock.elapsed < deadline:
            await self._drop_dead(desk)
            stats = await desk.stats()
            if not (stats.pending or stats.retrying or stats.blocked or stats.delayed or stats.dead):
                return
            await asyncio.sleep(1)

    async def _drop_dead(self, desk: MemoryStore) -> None:
        dead = await desk.find(Query(status=("dead",)))
        self.history.dropped.update(record.event_id for record in dead)
        await desk.drop(Query(status=("dead",)))

    # The application

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(2))
            aggregates = sorted(self.random.sample(AGGREGATES, self.random.choice((1, 1, 2))))
            for aggregate in aggregates:
                await self._locks[aggregate].acquire()
            try:
                await self._place(aggregates)
            finally:
                for aggregate in aggregates:
                    self._locks[aggregate].release()

    async def _place(self, aggregates: list[tuple[str, str]]) -> None:
        """Change aggregates under their locks, and add the events after the change."""
        transaction = self.database.begin()
        written: list[tuple[Event[int], tuple[str, str, str] | None]] = []
        try:
            for aggregate in aggregates * self.random.choice((1, 1, 2)):
                written.append(self._add(transaction, aggregate))
                await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.3, 2.5)) * self.random.random())
        except asyncio.CancelledError:
            transaction.rollback()
            self.history.rolled_back.update(str(event.id) for event, _ in written)
            raise
        if transaction.open and self.random.random() < 0.85:
            transaction.commit()
            self.history.committed.update((str(event.id), line) for event, line in written)
        else:
            transaction.rollback()
            self.history.rolled_back.update(str(event.id) for event, _ in written)

    def _add(self, transaction: object, aggregate: tuple[str, str]) -> tuple[Event[int], tuple[str, str, str] | None]:
        topic = self.random.choice(TOPICS)
        id = UUID(int=self.random.getrandbits(128), version=4)
        kind = self.random.random()
        if kind < 0.1:
            event = Event(topic, 0, id=id, aggregate=aggregate, available_at=self.clock.now() + timedelta(seconds=2))
        elif kind < 0.2:
            event = Event(topic, 0, id=id)
        else:
            event = Event(topic, 0, id=id, aggregate=aggregate)
        self._outbox.add(transaction, event)  # type: ignore[arg-type]
        if self.random.random() < 0.02:
            self.poison.add(str(event.id))
        ordered = event.aggregate is not None and event.available_at is None
        return event, (topic, *aggregate) if ordered else None

    # The operator, and the weather at the broker

    async def _operate(self) -> None:
        desk = MemoryStore(self.database, "desk")
        while True:
            await asyncio.sleep(self.random.expovariate(0.5))
            topic = self.random.choice(TOPICS)
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

    async def _weather(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(0.15))
            self.down_until = self.clock.elapsed + self.random.choice((0.05, 1, 8))
            self.hits["broker", "outage"] += 1


class RelayProcess:
    """A relay that is started again whenever it dies."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.starts = 0
        self.frozen_until = 0.0
        self._relay: Relay | None = None
        self._stopped = False

    async def live(self) -> None:
        while not self._stopped:
            self.starts += 1
            life = Life(self, f"{self.name}/{self.starts}")
            self._relay = self.world.relay_class(
                lambda life=life: Parts(life.store, life.publisher),  # type: ignore[misc]
                Settings(relay=RelaySettings(
                    batch=8, lease=LEASE, publish_timeout=timedelta(seconds=2), idle_longest=timedelta(milliseconds=400),
                    retries=2, backoff_first=timedelta(seconds=0.5), backoff_longest=timedelta(seconds=1),
                )),
                self.world.clock, Hooks(life.hear), self.world.random.random,
            )  # fmt: skip
            task = asyncio.create_task(self._relay.run())
            death = asyncio.create_task(life.death.wait())
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            death.cancel()
            if life.dead:
                task.cancel()  # its code runs on to its next call, which has no effect
                await asyncio.wait({task})
                await asyncio.sleep(self.world.random.random() * 2)
            else:
                task.result()

    def stop(self) -> None:
        self._stopped = True
        assert self._relay is not None
        self._relay.stop()


class Life:
    """One life of a relay's process: its store, its publisher, and the faults that strike it."""

    def __init__(self, process: RelayProcess, owner: str) -> None:
        self.world, self.process = process.world, process
        self.death = asyncio.Event()
        self.store = MemoryStore(
            self.world.database,
            owner,
            lease=LEASE,
            topics=self.world.topics,
            hooks=Hooks(self.hear),
            strike=self.strike,
        )
        self.publisher = SimulatedPublisher(self)

    @property
    def dead(self) -> bool:
        return self.death.is_set()

    def die(self) -> None:
        self.store.crash()
        self.death.set()

    def chance(self, fault: str, point: str, odds: float) -> bool:
        if self.world.quiet or self.dead or self.world.random.random() >= odds:
            return False
        self.world.hits[fault, point] += 1
        return True

    def hear(self, moment: Moment, facts: Facts) -> None:
        if moment in RELAY_MOMENTS and self.chance("crash", moment, self.world.odds.crash):
            self.die()

    async def strike(self, point: str) -> None:
        """A call of the store begins or ends."""
        odds = self.world.odds
        if self.chance("crash", point, odds.crash):
            self.die()
            return
        if self.chance("pause", point, odds.pause):
            length = self.world.random.choice((0.5, 1.5, 5)) * LEASE.total_seconds()
            self.process.frozen_until = self.world.clock.elapsed + length
        if self.chance("lost lease", point, odds.lost_lease):
            for member in self.world.database.members.values():
                member.lease_until = self.world.clock.now()
        while (wait := self.process.frozen_until - self.world.clock.elapsed) > 0:
            await asyncio.sleep(wait)
        begins = point in ("take", "renew", "release", "entries", "settle")
        if begins and self.chance("store error", point, odds.store_error):
            raise StoreUnavailable("simulated: the database does not answer")
        if not begins and self.chance("lost answer", point, odds.lost_answer):
            raise StoreUnavailable("simulated: done, but the answer was lost")


class SimulatedPublisher:
    """A broker at the other end of a network that delays, loses answers and goes away."""

    def __init__(self, life: Life) -> None:
        self._life, self._world = life, life.world
        self._answers: asyncio.Queue[Sequence[Outcome]] = asyncio.Queue()
        self._before: asyncio.Task[None] | None = None

    @property
    def prefix_safe(self) -> bool:
        return self._world.prefix_safe

    def send(self, messages: Sequence[Message]) -> None:
        if not self._life.dead:
            # One connection: what was handed over first arrives first.
            self._before = asyncio.create_task(self._travel(messages, self._before))

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = [*await self._answers.get()]
        while not self._answers.empty():
            outcomes += self._answers.get_nowait()
        return outcomes

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _travel(self, messages: Sequence[Message], before: asyncio.Task[None] | None) -> None:
        world, life = self._world, self._life
        if before is not None:
            await before
        slow = life.chance("pause", "handed over", world.odds.pause)
        await asyncio.sleep(world.random.choice((0.5, 1.5, 5)) * 3 if slow else world.random.random() * 0.02)
        if life.chance("crash", "handed over", world.odds.crash):
            life.die()
            if world.random.random() < 0.5:
                return  # it never left the machine
        if world.clock.elapsed < world.down_until:
            self._answer([Outcome(m.ticket, BrokerUnavailable("simulated: away")) for m in messages])
            return
        outcomes = self._store(messages)
        if life.chance("crash", "stored by broker", world.odds.crash):
            life.die()
        if life.chance("lost answer", "stored by broker", world.odds.lost_answer):
            lost: PublishError = world.random.choice((BrokerUnavailable("answer lost"), PublishTimeout("answer lost")))
            outcomes = [Outcome(ticket, error or lost) for ticket, error in outcomes]
        self._answer(outcomes)

    def _store(self, messages: Sequence[Message]) -> list[Outcome]:
        """Accept messages; of one key, nothing behind a refusal if we are prefix-safe."""
        world = self._world
        outcomes, refused_keys = [], set()
        cut = world.random.randrange(len(messages)) if self._life.chance("broker", "cut", 0.03) else len(messages)
        for index, message in enumerate(messages):
            key = (message.topic, message.key)
            error: PublishError | None = None
            if index >= cut or (self.prefix_safe and message.key is not None and key in refused_keys):
                error = BrokerUnavailable("simulated: cut in mid-batch")
            elif identity(message)[0] in world.poison and not world.quiet:
                error = PublishRejected("simulated: too large")
            elif self._life.chance("broker", "try again", 0.02):
                error = PublishError("simulated: try again")
            if error is None:
                world.history.wire.append(identity(message)[0])
            else:
                refused_keys.add(key)
            outcomes.append(Outcome(message.ticket, error))
        return outcomes

    def _answer(self, outcomes: Sequence[Outcome]) -> None:
        if not self._life.dead:
            self._answers.put_nowait(outcomes)
